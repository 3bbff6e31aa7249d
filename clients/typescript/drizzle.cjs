"use strict";

// Numbers for columns of Drizzle.
//
//   const orders = pgTable("orders", { id: bigint({ mode: "bigint" }).primaryKey().$defaultFn(from(client.tag("orders"))) });
//   await db.insert(orders).values(await numbered(orders, [{ … }, { … }]));
//
// Drizzle does not wait for a default, and numbers may have to be waited for: so numbered fills
// them in before, for all rows at once. Without it, an insert fails, whatever is in hand.

const { getTableColumns, getTableName } = require("drizzle-orm");

const tags = new WeakMap(); // of the functions below

/** Marks a column, whose mode has to be what the tag gives. */
function from(tag) {
  const missing = () => {
    throw new Error(`no number of the tag ${JSON.stringify(tag.name)}: insert with .values(await numbered(table, rows))`);
  };
  tags.set(missing, tag);
  return missing;
}

/** Returns the rows, or the row, with numbers in the columns that have none. */
async function numbered(table, rows, options) {
  const filled = [rows].flat().map((row) => ({ ...row }));
  const columns = Object.entries(getTableColumns(table)).filter(([, column]) => tags.has(column.defaultFn));
  if (columns.length === 0) throw new Error(`the table ${getTableName(table)} has no column with .$defaultFn(from(tag))`);
  for (const [key, column] of columns) {
    const without = filled.filter((row) => row[key] === undefined);
    if (without.length === 0) continue;
    const numbers = await tags.get(column.defaultFn).take(without.length, options);
    for (const [i, row] of without.entries()) row[key] = numbers[i];
  }
  return Array.isArray(rows) ? filled : filled[0];
}

module.exports = { from, numbered };
