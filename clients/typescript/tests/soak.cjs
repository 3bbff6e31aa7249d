"use strict";

// Takes numbers in eight places, four processes of a cluster with two threads each, two of which start a process amid it,
// and prints them: node soak.cjs COUNT URL...

const cluster = require("node:cluster");
const { fork } = require("node:child_process");
const { once } = require("node:events");
const { writeSync } = require("node:fs");
const { setTimeout: sleep } = require("node:timers/promises");
const { Worker, isMainThread, workerData } = require("node:worker_threads");
const { Client } = require("../index.cjs");

const WORKERS = 8;
const [count, ...servers] = [Number(process.argv[2]), ...process.argv.slice(3)];

async function write(text) {
  for (;;) {
    try {
      return writeSync(1, text);
    } catch (e) {
      if (e.code !== "EAGAIN") throw e; // the reader is slower, and Node.js lets no pipe block
      await sleep(1);
    }
  }
}

async function take(numbers, starts) {
  const client = new Client(servers, { deadline: 120_000, maxStep: 2000 });
  const tag = client.tag("orders");
  let child;
  for (let left = numbers; left > 0; ) {
    if (starts && left <= numbers / 2) {
      starts = false;
      child = fork(__filename, process.argv.slice(2), { env: { ...process.env, TAKE: String(Math.floor(left / 2)) } });
      left -= Math.floor(left / 2);
    }
    const some = [];
    for (let n = Math.min(left, 100); n > 0; n--) some.push(`${await tag.next()}\n`);
    await write(some.join("")); // short enough to be written at once
    left -= some.length;
  }
  await client.close();
  if (child !== undefined && child.exitCode === null) await once(child, "exit");
  if (child !== undefined && child.exitCode !== 0) throw new Error("a child failed");
}

async function main() {
  if (!isMainThread) return take(count / WORKERS, workerData.starts);
  if (process.env.TAKE !== undefined) return take(Number(process.env.TAKE), false);
  if (cluster.isPrimary) {
    await take(1, false);
    const all = Array.from({ length: WORKERS / 2 }, (_, i) => cluster.fork({ STARTS: i < 2 ? "1" : "" }));
    const codes = await Promise.all(all.map(async (worker) => (await once(worker, "exit"))[0]));
    await take(1, false);
    process.exitCode = codes.some((code) => code !== 0) ? 1 : 0;
    return;
  }
  const threads = [process.env.STARTS !== "", false].map((starts) => new Worker(__filename, { argv: process.argv.slice(2), workerData: { starts } }));
  await Promise.all(threads.map((thread) => once(thread, "exit")));
  process.disconnect();
}

main();
