import type { CallOptions, Tag } from "./index.cjs";

/** Any table of Drizzle: its types for both kinds of modules are not the same. */
interface AnyTable {
  readonly $inferInsert: Record<string, unknown>;
}

/** Marks a column for numbers of a tag: `bigint({ mode: "bigint" }).$defaultFn(from(tag))`. */
export function from<N>(tag: Tag<N>): () => N;

/** Fills in the numbers that rows lack: `db.insert(table).values(await numbered(table, rows))`. */
export function numbered<T extends AnyTable>(table: T, rows: Array<T["$inferInsert"]>, options?: CallOptions): Promise<Array<T["$inferInsert"]>>;
export function numbered<T extends AnyTable>(table: T, row: T["$inferInsert"], options?: CallOptions): Promise<T["$inferInsert"]>;
