"use strict";

// Real databases, each in a fresh directory on a free port.

const { execFileSync, spawn } = require("node:child_process");
const { once } = require("node:events");
const { chownSync, mkdtempSync, readdirSync, rmSync } = require("node:fs");
const { createServer } = require("node:net");
const { tmpdir } = require("node:os");
const { join } = require("node:path");
const { createInterface } = require("node:readline");

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** Runs a server until it says that it is ready; returns how to end it. */
async function run(dir, signal, ready, command, args, options) {
  const process = spawn(command, args, { stdio: ["ignore", "ignore", "pipe"], ...options });
  const said = [];
  for await (const line of createInterface(process.stderr)) {
    said.push(line);
    if (line.includes(ready)) {
      process.stderr.resume();
      return async () => {
        process.kill(signal);
        if (process.exitCode === null) await once(process, "exit");
        rmSync(dir, { recursive: true });
      };
    }
  }
  throw new Error(`${command} does not start: ${said.join("\n")}`);
}

async function postgres() {
  const programs = join("/usr/lib/postgresql", readdirSync("/usr/lib/postgresql").at(-1), "bin");
  const dir = mkdtempSync(join(tmpdir(), "hapax-"));
  const options = { cwd: "/" };
  if (process.getuid() === 0) {
    // PostgreSQL refuses to run as root.
    for (const kind of ["uid", "gid"]) options[kind] = Number(execFileSync("id", [kind === "uid" ? "-u" : "-g", "postgres"]));
    chownSync(dir, options.uid, options.gid);
  }
  const data = join(dir, "data");
  const port = await freePort();
  execFileSync(join(programs, "initdb"), ["-D", data, "-A", "trust", "-U", "postgres", "--no-sync"], { ...options, stdio: "ignore" });
  const args = ["-D", data, "-p", String(port), "-h", "127.0.0.1", "-k", dir, "-c", "fsync=off"];
  const close = await run(dir, "SIGINT", "ready to accept connections", join(programs, "postgres"), args, options);
  return { url: `postgres://postgres@127.0.0.1:${port}/postgres`, close };
}

async function mariadb() {
  const dir = mkdtempSync(join(tmpdir(), "hapax-"));
  const port = await freePort();
  const user = process.getuid() === 0 ? ["--user=root"] : [];
  const install = ["--no-defaults", `--datadir=${dir}`, "--auth-root-authentication-method=normal", ...user];
  execFileSync("mariadb-install-db", install, { stdio: "ignore" });
  const args = ["--no-defaults", ...user, `--datadir=${dir}`, `--socket=${dir}/s`, `--port=${port}`, "--bind-address=127.0.0.1", `--pid-file=${dir}/pid`];
  const close = await run(dir, "SIGTERM", "ready for connections", "mariadbd", args, {});
  return { url: `mysql://root@127.0.0.1:${port}/test`, close };
}

module.exports = { mariadb, postgres };
