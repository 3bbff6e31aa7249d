"use strict";

// Eight processes insert rows into real databases: no number twice, and few requests.
// Needs what package.json names, PostgreSQL under /usr/lib/postgresql, and MariaDB.

const assert = require("node:assert/strict");
const { execFile } = require("node:child_process");
const { mkdtempSync, rmSync, writeFileSync } = require("node:fs");
const { tmpdir } = require("node:os");
const { join } = require("node:path");
const { test } = require("node:test");
const { promisify } = require("node:util");
const { drizzle } = require("drizzle-orm/node-postgres");
const { bigint, pgTable, text } = require("drizzle-orm/pg-core");
const { DataSource } = require("typeorm");
const { Client } = require("hapax");
const { from, numbered } = require("hapax/drizzle");
const databases = require("./databases.cjs");
const { TestServer } = require("./play.cjs");

const WORKERS = 8;
const ROWS = process.env.HAPAX_TEST_SOAK ? 100_000 : 16_000;
const run = promisify(execFile);

async function started(t) {
  const dir = mkdtempSync(join(tmpdir(), "hapax-"));
  writeFileSync(join(dir, "script.json"), "{}");
  const server = await TestServer.start(process.env.HAPAX ?? "hapax", join(dir, "script.json"));
  t.after(() => server.close().then(() => rmSync(dir, { recursive: true })));
  return server;
}

/** Runs an example in one process, and then in eight. */
async function inWorkers(t, example, database) {
  const server = await started(t);
  const program = (rows) => run(process.execPath, [join(__dirname, "../examples", example), database.url, server.servers[0], String(rows)]);
  await program(1);
  await Promise.all(Array.from({ length: WORKERS }, () => program(ROWS / WORKERS)));

  const source = await new DataSource({ type: new URL(database.url).protocol.slice(0, -1), url: database.url }).initialize();
  const [{ rows }] = await source.query("SELECT count(*) AS \"rows\" FROM orders".replaceAll('"', database.url.startsWith("mysql") ? "`" : '"'));
  await source.destroy();
  assert.equal(Number(rows), ROWS + 1); // a number twice is an error of the primary key

  const counts = JSON.parse(await server.ask("/requests")).filter(({ path }) => path.endsWith("/take")).map(({ body }) => body.count);
  const steady = counts.filter((count) => count >= 1000).length;
  assert(counts.length - steady <= 8 * (WORKERS + 1), `${counts.length - steady} small requests: the step does not grow`);
  assert(steady > 0, "no worker came to its steady state");
  assert(steady <= ROWS / 500, `${steady} requests in steady state`);
}

test("Drizzle on PostgreSQL", async (t) => {
  const database = await databases.postgres();
  t.after(database.close);
  await inWorkers(t, "drizzle_orders.mjs", database);

  const server = await started(t);
  const client = new Client(server.servers);
  const other = pgTable("other", { id: bigint({ mode: "number" }).primaryKey().$defaultFn(from(client.tag("other", { as: "number" }))), what: text() });
  const db = drizzle(database.url);
  await db.execute("CREATE TABLE other (id bigint PRIMARY KEY, what text)");
  await db.insert(other).values(await numbered(other, { what: "tea" }));
  await db.insert(other).values(await numbered(other, [{ what: "milk" }, { id: 7 }, {}]));
  assert.deepEqual((await db.select().from(other)).map(({ id }) => id), [1, 2, 7, 3]);
  await assert.rejects(async () => db.insert(other).values({ what: "tea" }), /numbered/);
  await assert.rejects(numbered(pgTable("third", { what: text() }), {}), /third/);
  await db.$client.end();
  await client.close();
});

test("TypeORM on MariaDB", async (t) => {
  const database = await databases.mariadb();
  t.after(database.close);
  await inWorkers(t, "typeorm_orders.mjs", database);
});

test("an installed package", async (t) => {
  const server = await started(t);
  const dir = mkdtempSync(join(tmpdir(), "hapax-"));
  t.after(() => rmSync(dir, { recursive: true }));
  writeFileSync(join(dir, "package.json"), "{}");
  await run("npm", ["install", "--install-links", "--offline", "--no-audit", "--no-fund", join(__dirname, "..")], { cwd: dir });
  const use = `(server) => new Client(server).tag("orders").next().then(String).then(console.log)`;
  writeFileSync(join(dir, "a.cjs"), `const { Client } = require("hapax"); (${use})(process.argv[2])`);
  writeFileSync(join(dir, "b.mjs"), `import { Client } from "hapax"; (${use})(process.argv[2])`);
  for (const [i, file] of ["a.cjs", "b.mjs"].entries()) {
    const { stdout } = await run(process.execPath, [file, server.servers[0]], { cwd: dir });
    assert.equal(stdout, `${i + 1}\n`);
  }
});
