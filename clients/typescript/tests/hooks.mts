import { Client } from "hapax";
import { from, numbered } from "hapax/drizzle";
import * as typeorm from "hapax/typeorm";
import { bigint, pgTable, text } from "drizzle-orm/pg-core";
import { DataSource } from "typeorm";

const client = new Client("http://127.0.0.1:8080");

const orders = pgTable("orders", {
  id: bigint({ mode: "bigint" }).primaryKey().$defaultFn(from(client.tag("orders"))),
  // @ts-expect-error: the column gives numbers, and the tag bigints
  other: bigint({ mode: "number" }).$defaultFn(from(client.tag("orders"))),
  what: text().notNull(),
});

const rows: Promise<Array<{ id?: bigint | undefined; what: string }>> = numbered(orders, [{ what: "tea" }]);
const row: Promise<{ id?: bigint | undefined; what: string }> = numbered(orders, { what: "tea" }, { deadline: 100 });
// @ts-expect-error: what is missing
numbered(orders, {});

export const source = new DataSource({ type: "postgres", subscribers: [typeorm.numbered(client, { Order: { id: "orders" } })] });
export { row, rows };
