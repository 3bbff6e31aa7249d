"use strict";

// TypeORM: a subscriber gives each new entity a number from hapax.
const { DataSource, EntitySchema, EventSubscriber } = require("typeorm");
const { numbers } = require("./hapax-ids.js");

const nextOrder = numbers("typeorm-orders");

const Order = new EntitySchema({
  name: "Order",
  tableName: "recipe_typeorm",
  columns: { id: { type: "bigint", primary: true }, what: { type: "text" } },
});

class Numbered {
  async beforeInsert({ entity, metadata }) {
    if (metadata.name === "Order") entity.id ??= await nextOrder();
  }
}
EventSubscriber()(Numbered); // in TypeScript: @EventSubscriber() above the class

async function main(what) {
  const source = new DataSource({ type: "postgres", url: process.env.DATABASE_URL, entities: [Order], subscribers: [Numbered] });
  await source.initialize();
  try {
    if (what === "create") return await source.synchronize();
    const orders = source.getRepository("Order");
    for (let n = 0; n < Number(what); n++) await orders.save({ what: `order ${n}` });
    await orders.save(Array.from({ length: Number(what) }, (_, n) => ({ what: `bulk ${n}` })));
  } finally {
    await source.destroy();
  }
}

main(process.argv[2]);
