"use strict";

// What compare measures, in Node.js: compare.cjs HTTP-URL REDIS-PORT SECONDS.

const net = require("node:net");
const { once } = require("node:events");
const { Client } = require("../../clients/typescript/index.cjs");

const [url, redisPort, seconds] = [process.argv[2], Number(process.argv[3]), 1000 * Number(process.argv[4])];

async function measure(name, call, numbers = 1) {
  for (const end = performance.now() + seconds / 4; performance.now() < end; ) await call(); // warm
  const times = [];
  const began = performance.now();
  let last = began;
  while (last < began + seconds) {
    await call();
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  times.sort((a, b) => a - b);
  console.log(name, (times.length * numbers * 1000) / (last - began), times[Math.floor(times.length * 0.99)] * 1000);
}

/** A connection that sends a request, and waits until an answer is whole. */
async function connected(port, isWhole) {
  const socket = net.connect(port, "127.0.0.1").setNoDelay();
  await once(socket, "connect");
  let got = "";
  let done;
  socket.on("data", (data) => {
    got += data.latin1Slice();
    if (isWhole(got)) {
      got = "";
      done();
    }
  });
  const call = (request) => new Promise((resolve) => {
    done = resolve;
    socket.write(request);
  });
  return { call, end: () => socket.destroy() };
}

function isWholeHTTP(text) {
  const head = text.indexOf("\r\n\r\n");
  return head >= 0 && text.length >= head + 4 + Number(/content-length: *(\d+)/i.exec(text)[1]);
}

async function main() {
  const client = new Client(url);
  const tag = client.tag("bench");
  await measure("next", () => tag.next());
  await measure("take", () => tag.take(100), 100);
  await client.close();
  const http = await connected(Number(new URL(url).port), isWholeHTTP);
  await measure("http", () => http.call("POST /v1/tags/bench/ids HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n"));
  http.end();
  const incr = "*2\r\n$4\r\nINCR\r\n$5\r\nbench\r\n";
  for (const [name, replies] of [["redis", 1], ["pipeline", 100]]) {
    const redis = await connected(redisPort, (text) => text.split("\n").length > replies);
    await measure(name, () => redis.call(incr.repeat(replies)), replies);
    redis.end();
  }
}

main();
