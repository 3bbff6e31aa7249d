// Inserts rows whose numbers come from hapax: node drizzle_orders.mjs postgres://… HAPAX-URL [ROWS]

import { sql } from "drizzle-orm";
import { drizzle } from "drizzle-orm/node-postgres";
import { bigint, pgTable, text } from "drizzle-orm/pg-core";
import { Client } from "hapax";
import { from, numbered } from "hapax/drizzle";

const [database, server, rows = "1"] = process.argv.slice(2);
const client = new Client(server, { deadline: 60_000 }); // nobody waits at a screen

const orders = pgTable("orders", {
  id: bigint({ mode: "bigint" })
    .primaryKey()
    .$defaultFn(from(client.tag("orders"))),
  what: text().notNull(),
});

const db = drizzle(database);
await db.execute(sql`CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, what text NOT NULL)`);
for (let left = Number(rows); left > 0; left -= 250) {
  const batch = Array.from({ length: Math.min(250, left) }, () => ({ what: "tea" }));
  await db.insert(orders).values(await numbered(orders, batch));
}
await db.$client.end();
await client.close();
