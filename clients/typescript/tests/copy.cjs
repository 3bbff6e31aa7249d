"use strict";

// A startup snapshot is the one way in which Node.js copies what a program has in memory: each
// process that starts with it has the same numbers in hand. Node.js 20 takes none of a program that
// has used node:http; so a counter in a file stands for the servers.

const { execFileSync } = require("node:child_process");
const { mkdtempSync, readFileSync, rmSync, writeFileSync } = require("node:fs");
const { tmpdir } = require("node:os");
const { join } = require("node:path");

const servers = `
const fs = require("node:fs");
const file = process.env.COUNTER;
class Servers {
  logger = console;
  async ask(path, { count }, until, read) {
    const first = Number(fs.readFileSync(file)) + 1;
    fs.writeFileSync(file, String(first + count - 1));
    return read({ count, first: String(first), delta: "1", valid_for: 3600, receipt: "r", returnable: count }, { clock: performance.now(), wall: Date.now() });
  }
}
module.exports = { HapaxError: Error, Servers, invalid: (detail) => new Error(detail) };
`;

const main = `
const client = new (load("./index.cjs").Client)("http://127.0.0.1:1", { minStep: 20, maxStep: 20, ahead: false });
process.removeAllListeners("beforeExit"); // which would hand all of it back in time
async function print(times) {
  for (let i = 0; i < times; i++) console.log(String(await client.tag("orders").next()));
}
const snapshot = require("node:v8").startupSnapshot;
snapshot.setDeserializeMainFunction(() => print(10));
print(5);
`;

/** The numbers that a program and two copies of it print; change alters a file of the client. */
function copies(change = (name, text) => text) {
  const dir = mkdtempSync(join(tmpdir(), "hapax-"));
  try {
    const modules = ["place", "stretch", "index"].map((name) => [name, change(name, readFileSync(join(__dirname, "..", `${name}.cjs`), "utf8"))]);
    let text = "const files = {}, loaded = {}, builtin = require;\n";
    for (const [name, code] of [...modules, ["servers", servers]]) text += `files["./${name}.cjs"] = (module, exports, require) => {${code}};\n`;
    text += `function load(name) {
  if (!files[name]) return builtin(name);
  if (!loaded[name]) files[name]((loaded[name] = { exports: {} }), loaded[name].exports, load);
  return loaded[name].exports;
}\n`;
    writeFileSync(join(dir, "program.cjs"), text + main);
    writeFileSync(join(dir, "counter"), "0");
    const run = (...args) =>
      execFileSync(process.execPath, ["--snapshot-blob", "program.blob", ...args], { cwd: dir, env: { ...process.env, COUNTER: join(dir, "counter") }, encoding: "utf8" });
    return [["--build-snapshot", "program.cjs"], [], []].flatMap((args) => run(...args).trim().split("\n"));
  } finally {
    rmSync(dir, { recursive: true });
  }
}

module.exports = { copies };
