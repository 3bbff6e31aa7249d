"use strict";

// Knex: rows are inserted with numbers from hapax.
const knex = require("knex")({ client: "pg", connection: process.env.DATABASE_URL });
const { numbers } = require("./hapax-ids.js");

const nextOrder = numbers("knex-orders");

async function main(what) {
  if (what === "create") {
    await knex.schema.createTable("recipe_knex", (table) => {
      table.bigInteger("id").primary();
      table.text("what").notNullable();
    });
    return;
  }
  const all = Array.from({ length: Number(what) }, (_, n) => n);
  await Promise.all(all.map(async (n) => knex("recipe_knex").insert({ id: await nextOrder(), what: `order ${n}` })));
  await knex("recipe_knex").insert(await Promise.all(all.map(async (n) => ({ id: await nextOrder(), what: `bulk ${n}` }))));
}

main(process.argv[2]).finally(() => knex.destroy());
