// Inserts rows whose numbers come from hapax: node typeorm_orders.mjs mysql://… HAPAX-URL [ROWS]

import { Client } from "hapax";
import { numbered } from "hapax/typeorm";
import { DataSource, EntitySchema } from "typeorm";

const [database, server, rows = "1"] = process.argv.slice(2);
const client = new Client(server, { deadline: 60_000 }); // nobody waits at a screen

const Order = new EntitySchema({
  name: "Order",
  tableName: "orders",
  columns: { id: { type: "bigint", primary: true }, what: { type: "text" } },
});

const source = new DataSource({
  type: new URL(database).protocol.slice(0, -1),
  url: database,
  entities: [Order],
  subscribers: [numbered(client, { Order: { id: "orders" } })],
});
await source.initialize();
await source.query("CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, what text NOT NULL)");
const orders = source.getRepository(Order);
for (let left = Number(rows); left > 0; left -= 250) {
  const batch = Array.from({ length: Math.min(250, left) }, () => ({ what: "tea" }));
  if (left % 500 === 0) await orders.insert(batch);
  else await orders.save(batch);
}
await source.destroy();
await client.close();
