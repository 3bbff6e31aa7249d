import type { Client } from "./index.cjs";

/** Makes a subscriber for a DataSource, of the names of entities, of their properties, and of tags. */
export function numbered(client: Client, entities: Record<string, Record<string, string>>): new () => object;
