"use strict";

// Run with HAPAX=path/to/hapax node --test tests/client.test.cjs

const assert = require("node:assert/strict");
const { execFile } = require("node:child_process");
const { once } = require("node:events");
const { cpSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } = require("node:fs");
const { createServer } = require("node:net");
const { tmpdir } = require("node:os");
const { join } = require("node:path");
const { test } = require("node:test");
const { promisify } = require("node:util");
const { Worker } = require("node:worker_threads");
const { Client, HapaxError } = require("../index.cjs");
const { Servers } = require("../servers.cjs");
const { Stretch } = require("../stretch.cjs");
const { copies } = require("./copy.cjs");
const { Failed, TestServer, play } = require("./play.cjs");

const binary = process.env.HAPAX ?? "hapax";
const home = join(__dirname, "..");
const transcripts = join(home, "..", "transcripts");
const names = readdirSync(transcripts).filter((name) => name.endsWith(".json"));
const transcript = (number) => join(transcripts, names.find((name) => name.startsWith(`${number}-`)));

test("transcripts", { concurrency: 8 }, async (t) => {
  assert(names.length > 30);
  // Node.js does not fork; "copies" below is in its place.
  await Promise.all(names.filter((name) => !name.includes("fork")).map((name) => t.test(name, () => play(binary, join(transcripts, name)))));
});

test("copies of a program begin with nothing", () => {
  const numbers = copies();
  assert.equal(numbers.length, 25);
  assert.equal(new Set(numbers).size, 25);
});

// Broken clients fail the transcripts that are about what they do wrong.

async function caught(number, make) {
  await assert.rejects(play(binary, transcript(number), make), Failed);
}

/** Puts methods in the place of those of a class, while f runs. */
async function patched({ prototype }, methods, f) {
  const before = Object.getOwnPropertyDescriptors(prototype);
  Object.assign(prototype, methods);
  try {
    await f();
  } finally {
    for (const name of Object.keys(methods)) Object.defineProperty(prototype, name, before[name]);
  }
}

/** Makes clients of sources in which one text is replaced by another. */
function altered(t, replacements) {
  const dir = mkdtempSync(join(tmpdir(), "hapax-"));
  t.after(() => rmSync(dir, { recursive: true }));
  cpSync(home, dir, { recursive: true, filter: (file) => file === home || file.endsWith(".cjs") });
  let text = readFileSync(join(dir, "index.cjs"), "utf8");
  for (const [from, to] of replacements) {
    assert(text.includes(from), from);
    text = text.replace(from, to);
  }
  writeFileSync(join(dir, "index.cjs"), text);
  const twin = require(join(dir, "index.cjs"));
  return Object.assign((...args) => new twin.Client(...args), twin);
}

test("twin: no look at the process", () => {
  const numbers = copies((name, text) => (name === "place" ? text.replace(/^exports.isHere = .*$/m, "exports.isHere = () => true;") : text));
  assert.equal(numbers.length, 25);
  assert.notEqual(new Set(numbers).size, 25);
});

for (const part of ["place.pid === process.pid && ", " && place.token === token"]) {
  test(`a copy is told apart without ${part}`, () => {
    const numbers = copies((name, text) => text.replace(part, ""));
    assert.equal(new Set(numbers).size, 25);
  });
}

test("twin: takes anew, and later uses the answer that came late, too", () => {
  const { askOne } = Servers.prototype;
  const late = [];
  const methods = {
    async askOne(server, path, body, timeout) {
      if (late[0]?.answer) return late.shift().answer;
      const call = { answer: undefined };
      const asked = askOne.call(this, server, path, body, 60_000).then((answer) => (call.answer = answer));
      const over = new Promise((resolve) => setTimeout(resolve, timeout));
      if ((await Promise.race([asked, over])) !== undefined) return call.answer;
      late.push(call);
      throw new HapaxError("unavailable");
    },
  };
  return patched(Servers, methods, () => caught("10"));
});

test("twin: goes past the end", () => patched(Stretch, { over: () => false }, () => caught("20")));

test("twin: counts what a lost answer held as taken", () => {
  const { askOne } = Servers.prototype;
  const methods = {
    async askOne(server, path, body, timeout) {
      let got;
      try {
        got = await askOne.call(this, server, path, body, timeout);
      } catch (e) {
        if (e.status || path.endsWith("handback")) throw e;
        got = { answer: { count: body.count, first: String((this.above ?? 0) + 1), delta: "1", valid_for: 60 } };
      }
      if (got.answer.first) this.above = Number(got.answer.first) + got.answer.count - 1;
      return got;
    },
    settle(server, store) {
      this.store ??= store;
    },
  };
  return patched(Servers, methods, async () => {
    await caught("08");
    await caught("09");
  });
});

test("twin: goes on after a hand-back", (t) => caught("29", altered(t, [["state.end.abort();", ""], ["this.lines.clear();", ""]])));

async function started(t, script = {}) {
  const dir = mkdtempSync(join(tmpdir(), "hapax-"));
  writeFileSync(join(dir, "script.json"), JSON.stringify(script));
  const server = await TestServer.start(binary, join(dir, "script.json"));
  t.after(() => server.close().then(() => rmSync(dir, { recursive: true })));
  server.requests = async (end) => JSON.parse(await server.ask("/requests")).filter((request) => request.path.endsWith(end));
  return server;
}

const patient = { deadline: 60_000, callTimeout: 60_000 };

test("many callers share what is fetched", async (t) => {
  const server = await started(t);
  const client = new Client(server.servers, patient);
  const tag = client.tag("orders");
  const parts = await Promise.all(
    Array.from({ length: 8 }, async () => {
      const part = [];
      for (let i = 0; i < 5000; i++) part.push(await tag.next());
      return part;
    }),
  );
  assert.equal(new Set(parts.flat()).size, 40_000);
  for (const part of parts) assert(part.every((n, i) => i === 0 || n > part[i - 1]));
  const at = await Promise.all(Array.from({ length: 5000 }, () => tag.next()));
  assert.equal(new Set([...parts.flat(), ...at]).size, 45_000);
  const asked = (await server.requests("take")).length;
  assert(asked < 100, `${asked} requests: the step does not follow the use`);
  await client.close();
  await assert.rejects(tag.next(), { code: "closed" });
});

test("numbers that may not be kept are asked for by each call", async (t) => {
  const server = await started(t, { tags: { daily: { code: "{yyyy}{MM}{dd}-{seq:6}", zone: "UTC" } } });
  const tag = new Client(server.servers, patient).tag("daily");
  const parts = await Promise.all(Array.from({ length: 50 }, (_, i) => tag.take(1 + (i % 3))));
  assert.equal(new Set(parts.flat()).size, parts.flat().length);
  assert((await server.requests("take")).every(({ body }, i) => i === 0 || body.count <= 3));
});

test("numbers and texts", async (t) => {
  const server = await started(t, { tags: { large: { start: 2 ** 53 - 1 } } });
  const client = new Client(server.servers, patient);
  assert.equal(await client.tag("orders").next(), 1n);
  assert.equal(await client.tag("orders", { as: "number" }).next(), 2);
  assert.deepEqual(await client.tag("orders", { as: "string" }).take(2), ["3", "4"]);
  const large = client.tag("large", { as: "number" });
  assert.equal(await large.next(), 2 ** 53 - 1);
  await assert.rejects(large.next(), { code: "invalid_argument" });
  assert.equal(await client.tag("large").next(), 2n ** 53n + 1n);
  await client.close();
});

test("whoever is cancelled or late leaves the fetch to the others", async (t) => {
  const server = await started(t, { servers: [{ faults: [{ at: 1, do: "delay", ms: 2000 }] }] });
  const client = new Client(server.servers, { ...patient, ahead: false });
  const tag = client.tag("orders");
  const stop = new AbortController();
  const stopped = assert.rejects(tag.next({ signal: stop.signal }), { name: "AbortError" });
  const late = assert.rejects(tag.next({ deadline: 50 }), { code: "unavailable" });
  const others = Promise.all([tag.next(), tag.next()]);
  stop.abort();
  await stopped;
  await late;
  assert.deepEqual(await others, [1n, 2n]);
  await assert.rejects(tag.next({ signal: stop.signal }), { name: "AbortError" });
  assert.equal((await server.requests("take")).length, 1);
  await client.close();
});

test("who waits learns that the client was closed, and what comes then is handed back", async (t) => {
  const server = await started(t, { servers: [{ faults: [{ at: 1, do: "delay", ms: 300 }] }] });
  const client = new Client(server.servers, { ...patient, ahead: false });
  const waiting = assert.rejects(client.tag("orders").next(), { code: "closed" });
  await Promise.all([client.close(), client[Symbol.asyncDispose]()]);
  await waiting;
  assert.deepEqual((await server.requests("handback")).map(({ body }) => body.unused), [10]);
});

test("a closed client leaves nothing", async (t) => {
  const make = altered(t, [["module.exports = {", "module.exports = { states,"]]);
  const clients = Array.from({ length: 3 }, () => make("http://127.0.0.1:1"));
  assert.equal(make.states.size, 3);
  await Promise.all(clients.map((client) => client.close()));
  assert.equal(make.states.size, 0);
});

test("servers that hang before one that answers", async (t) => {
  const server = await started(t);
  const sockets = [];
  const hangs = createServer((socket) => sockets.push(socket)).listen(0, "127.0.0.1");
  t.after(() => [...sockets, hangs].forEach((one) => (one.destroy ?? one.close).call(one)));
  await once(hangs, "listening");
  const url = `http://127.0.0.1:${hangs.address().port}`;
  const [first, asked] = [[], []];
  const { ask } = Servers.prototype;
  const methods = {
    ask(...args) {
      first.push(this.preferred);
      asked.push(ask.apply(this, args));
      return asked.at(-1);
    },
  };
  await patched(Servers, methods, async () => {
    const client = new Client([url, url, ...server.servers], { deadline: 500, callTimeout: 300, ahead: false });
    await assert.rejects(client.tag("orders").next(), { code: "unavailable" });
    await Promise.allSettled(asked);
    assert.equal(await client.tag("orders").next({ deadline: 60_000 }), 1n);
    assert.notEqual(first.at(-1), 0, "its time never reaches the last");
    await client.close();
  });
});

test("answers without numbers", async (t) => {
  const first = '"count":1,"first":"1","delta":"1","valid_for":60';
  const bodies = [
    "", "{", `{"a":${"[".repeat(100_000)}`, "{}", '{"count":1}', '{"count":"1","first":"1","delta":"1"}', '{"count":0,"ids":[]}', '{"count":11,"first":"1","delta":"1"}',
    '{"count":1,"first":1,"delta":"1"}', '{"count":1,"first":"-1","delta":"1"}', '{"count":1,"first":"9223372036854775808","delta":"1"}', '{"count":1,"first":"0x1","delta":"1"}',
    '{"count":2,"first":"9223372036854775807","delta":"1"}', '{"count":2,"first":"1","delta":"0"}', '{"count":2,"first":"5","delta":"-1"}', '{"count":2,"first":"1"}',
    `{"count":1,"first":"${"9".repeat(100_000)}","delta":"1"}`, '{"count":2,"ids":["1"]}', '{"count":1,"ids":[1]}', '{"count":1,"ids":{"0":"1","length":1}}',
    ...["-1", "[]", '"60"', "{}"].map((valid) => `{${first.replace("60", valid)}}`),
  ];
  const faults = bodies.map((body, i) => ({ at: i + 1, do: "answer", status: 200, body }));
  faults.push({ at: faults.length + 1, do: "answer", status: 503, body: '{"code":"refill_pending","detail":{"toString":1}}' });
  const server = await started(t, { servers: [{ faults }] });
  const client = new Client(server.servers, { ...patient, ahead: false });
  for (let done = 1; done <= faults.length; done++) {
    const refused = (e) => e instanceof HapaxError && e.message.length < 300;
    await assert.rejects(client.tag("orders").next({ deadline: 40 }), refused, faults[done - 1].body.slice(0, 99));
    await server.ask(`/requests?done=${done}`);
  }
  assert.equal(await client.tag("orders").next(), 1n);
  await client.close();
});

test("the program of the README", async (t) => {
  const server = await started(t);
  const [, program] = readFileSync(join(home, "README.md"), "utf8").match(/```js\n(.*?)```/s);
  const local = program.replace('"hapax"', '"./index.cjs"').replace("http://127.0.0.1:8080", server.servers[0]);
  assert.notEqual(local, program);
  const { stdout } = await promisify(execFile)(process.execPath, ["-e", local], { cwd: home });
  assert.equal(stdout, "1n\n");
});

test("the end of a program hands back", async (t) => {
  const server = await started(t);
  const program = `const { Client } = require("./index.cjs"); new Client(process.argv[1], { ahead: false }).tag("orders").next().then(String).then(console.log)`;
  const { stdout } = await promisify(execFile)(process.execPath, ["-e", program, server.servers[0]], { cwd: home });
  assert.equal(stdout, "1\n");
  assert.deepEqual((await server.requests("handback")).map(({ body }) => body.unused), [9]);
});

test("modules of both kinds are one, in each thread and process apart", async (t) => {
  const server = await started(t);
  const program = `
    import { Client } from "./index.mjs";
    import { createRequire } from "node:module";
    import cluster from "node:cluster";
    if (createRequire(process.cwd() + "/")("./index.cjs").Client !== Client) throw new Error("two");
    const tag = new Client(process.argv[1]).tag("orders");
    await tag.next();
    if (cluster.isPrimary) for (let i = 0; i < 2; i++) cluster.fork();
    let text = "";
    for (let i = 0; i < 100; i++) text += (await tag.next()) + "\\n";
    process.stdout.write(text, () => cluster.worker?.disconnect());`;
  const inThread = `
    const { Client } = require("./index.cjs"); const { parentPort, workerData } = require("node:worker_threads");
    new Client(workerData).tag("orders").take(100).then((numbers) => parentPort.postMessage(numbers));`;
  const cwd = process.cwd();
  process.chdir(home);
  t.after(() => process.chdir(cwd));
  const threads = [1, 2].map(() => new Promise((resolve, reject) => new Worker(inThread, { eval: true, workerData: server.servers[0] }).once("message", resolve).once("error", reject)));
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "-e", program, server.servers[0]], { cwd: home });
  const all = [...stdout.trim().split("\n"), ...(await Promise.all(threads)).flat().map(String)];
  assert.equal(all.length, 500);
  assert.equal(new Set(all).size, 500);
});

test("wrong settings", () => {
  for (const [servers, options] of [
    [[]], [["ftp://x"]], [["http://u:secret@x"]], ["x"], ["http://x", { token: "a secret" }], ["http://x", { minStep: 0 }], ["http://x", { minStep: 2, maxStep: 1 }],
    ["http://x", { deadline: 0 }], ["http://x", { callTimeout: "1" }],
  ]) {
    assert.throws(() => new Client(servers, options), (e) => e.code === "invalid_argument" && !e.message.includes("secret"));
  }
  const client = new Client("http://127.0.0.1:1");
  assert.throws(() => client.tag("\ud800"), { code: "invalid_tag" });
  assert.throws(() => client.tag("orders", { as: "text" }), { code: "invalid_argument" });
});
