"use strict";

// Plays the client's part of transcripts: node play.cjs HAPAX FILE... prints a line for each.

const { spawn } = require("node:child_process");
const { once } = require("node:events");
const { readFileSync } = require("node:fs");
const { basename } = require("node:path");
const { createInterface } = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");
const { Client } = require("../index.cjs");

/** What was not as the transcript has it. */
class Failed extends Error {}

/** hapax testserver, which ends with this process. */
class TestServer {
  static async start(binary, script) {
    const server = new TestServer();
    server.process = spawn(binary, ["testserver", "--http", "127.0.0.1:0", "--until-eof", "--script", script], { stdio: ["pipe", "pipe", "inherit"] });
    server.servers = [];
    for await (const line of createInterface(server.process.stdout)) {
      const [what, url] = line.split(" ");
      if (what === "ready") return server;
      if (what === "server") server.servers.push(url);
      else server.control = url;
    }
    throw new Failed("the test server does not start");
  }

  async ask(path, body) {
    const answer = await fetch(this.control + path, body && { method: "POST", body: JSON.stringify(body) });
    const text = await answer.text();
    if (!answer.ok) throw new Failed(text);
    return text;
  }

  async close() {
    const exited = this.process.exitCode === null ? once(this.process, "exit") : undefined;
    this.process.stdin.end();
    await exited;
  }
}

/** Plays one transcript, or fails with Failed. */
async function play(binary, file, make = (...args) => new Client(...args)) {
  const script = JSON.parse(readFileSync(file, "utf8"));
  const server = await TestServer.start(binary, file);
  try {
    const { token, min_step, max_step, ahead, deadline_ms, call_timeout_ms } = script.client ?? {};
    const client = make(server.servers, { token, minStep: min_step, maxStep: max_step, ahead, deadline: deadline_ms, callTimeout: call_timeout_ms });
    const seen = new Set();
    for (const [i, step] of script.steps.entries()) {
      try {
        await perform(client, server, step, seen);
      } catch (e) {
        throw new Failed(`step ${i + 1}, ${JSON.stringify(step)}: ${e instanceof Failed ? e.message : e.stack}`);
      }
    }
    await server.ask("/check");
  } finally {
    await server.close();
  }
}

async function perform(client, server, step, seen) {
  if (step.do === "sleep") await sleep(step.ms);
  else if (step.do === "requests") await server.ask(`/requests?done=${step.done}`);
  else if (step.do === "server") await server.ask("/do", step.fault);
  else if (step.do === "close") await client.close();
  else await call(client, step, seen);
}

async function call(client, step, seen) {
  const got = [];
  try {
    const tag = client.tag(step.tag);
    if (step.do === "next") for (let i = 0; i < (step.times ?? 1); i++) got.push(await tag.next());
    else if (step.do === "take") got.push(...(await tag.take(step.count)));
    else if (step.do === "codes") got.push(...(await tag.codes(step.count)).map((code) => code.text));
    else throw new Failed("no such step");
  } catch (e) {
    if (e.name !== "HapaxError" || e.code !== step.error) throw e;
    return;
  }
  if (step.error !== undefined) throw new Failed(`no error, but ${got}`);
  for (const n of got) {
    const key = `${step.tag} ${n}`;
    if (seen.has(key)) throw new Failed(`${n} came twice`);
    seen.add(key);
  }
  if (step.want !== undefined && got.join() !== step.want.join()) throw new Failed(`got ${got}`);
}

module.exports = { Failed, TestServer, play };

if (require.main === module) {
  (async () => {
    for (const file of process.argv.slice(3)) {
      try {
        await play(process.argv[2], file);
        console.log("ok", basename(file));
      } catch (e) {
        process.exitCode = 1;
        console.log("FAILED", basename(file), e.message);
      }
    }
  })();
}
