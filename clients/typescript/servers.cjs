"use strict";

// Asks servers: one until it fails, and then the next.

const { once } = require("node:events");
const http = require("node:http");
const https = require("node:https");
const { urlToHttpOptions } = require("node:url");
const { Malformed, now, text } = require("./stretch.cjs");

const MAX_ANSWER = 64 << 20; // bytes
const REST = 1000; // milliseconds for which a server that failed is asked last
const MAX_RETRY_AFTER = 3_600_000;
const REFUSED = new Set([400, 401, 403, 404, 405, 409, 410, 413, 415, 501]);

/** Says why there is no number. Branch on its code, which is the server's, or one of
 * invalid_argument, invalid_tag, closed and unavailable. */
class HapaxError extends Error {
  constructor(code, detail, { final = false, status = 0, retryAfter = 0 } = {}) {
    super(detail ? `${code}: ${detail}` : code);
    // status: of HTTP, 0 if no server said so; final: asking again will not help; retryAfter: milliseconds
    Object.assign(this, { name: "HapaxError", code, status, final, retryAfter });
  }
}

const invalid = (detail) => new HapaxError("invalid_argument", detail, { final: true });

class Server {
  constructor(text, tls) {
    const url = URL.canParse(text) ? new URL(text) : undefined;
    if (!url || !/^https?:$/.test(url.protocol) || url.username || url.password || url.search || url.hash) {
      throw invalid(`invalid server ${String(text).includes("@") ? "(not shown)" : JSON.stringify(text)}: want one such as http://127.0.0.1:8080`);
    }
    Object.assign(this, { url, name: url.origin, base: url.pathname.replace(/\/+$/, ""), restsUntil: 0 });
    this.module = url.protocol === "https:" ? https : http;
    this.agent = new this.module.Agent({ keepAlive: true, maxSockets: 64, maxFreeSockets: 4, timeout: 30_000, ...tls });
  }

  /** Sends one request, and returns all of its answer. */
  async post(path, body, headers, timeout) {
    const request = this.module.request({
      ...urlToHttpOptions(this.url),
      agent: this.agent,
      method: "POST",
      path: this.base + path,
      headers: { ...headers, "Content-Length": Buffer.byteLength(body) },
      signal: AbortSignal.timeout(Math.max(1, Math.ceil(timeout))), // of all of the answer: that of a socket begins anew with each byte
    });
    request.on("error", () => {}); // also after the answer began
    request.end(body);
    const [answer] = await once(request, "response");
    const chunks = [];
    let size = 0;
    for await (const chunk of answer) {
      size += chunk.length;
      if (size > MAX_ANSWER) throw new Error("the answer is too long");
      chunks.push(chunk);
    }
    return { status: answer.statusCode, headers: answer.headers, text: Buffer.concat(chunks).toString() };
  }
}

/** The servers of one client, in one process. */
class Servers {
  constructor(urls, { token, tls, callTimeout, logger }, store) {
    this.all = urls.map((url) => new Server(url, tls));
    this.preferred = 0;
    this.headers = { "Content-Type": "application/json", "User-Agent": "hapax-js/1" };
    if (token !== undefined) this.headers.Authorization = `Bearer ${token}`;
    Object.assign(this, { callTimeout, logger, store });
  }

  /** Asks each server once, until one gives an answer that read accepts; read gets the times at
   * which it was asked, too. */
  async ask(path, body, until, read) {
    const began = now();
    const order = this.all.map((_, i) => this.all[(this.preferred + i) % this.all.length]);
    order.sort((a, b) => (a.restsUntil > began) - (b.restsUntil > began)); // is stable
    let last;
    let soonest = MAX_RETRY_AFTER;
    for (const server of order) {
      const left = until() - now();
      if (left <= 0) break;
      const sent = { clock: now(), wall: Date.now() };
      try {
        const { answer, store } = await this.askOne(server, path, body, Math.min(left, this.callTimeout));
        const result = read(answer, sent);
        this.settle(server, store);
        this.preferred = this.all.indexOf(server);
        return result;
      } catch (e) {
        let error = e;
        if (e instanceof Malformed) error = new HapaxError("unavailable", `${server.name} answered with something else than numbers: ${e.message}`);
        if (!(error instanceof HapaxError) || error.final || error.status === 429 || error.status === 507) throw error;
        this.preferred = (this.all.indexOf(server) + 1) % this.all.length; // else the time may never reach those after some that hang
        server.restsUntil = now() + Math.max(REST, error.retryAfter);
        soonest = Math.min(soonest, error.retryAfter);
        this.logger.warn(`hapax: ${server.name}: ${error.message}`);
        if (last === undefined || error.status) last = error;
      }
    }
    if (last === undefined) throw new HapaxError("unavailable", "no server answered in time");
    last.retryAfter = soonest;
    throw last;
  }

  async askOne(server, path, body, timeout) {
    const headers = this.store === undefined ? this.headers : { ...this.headers, "Hapax-Store": this.store };
    let got;
    try {
      got = await server.post(path, JSON.stringify(body), headers, timeout);
    } catch (e) {
      throw new HapaxError("unavailable", `${server.name} did not answer: ${e.name === "AbortError" ? "its time is over" : e.message}`);
    }
    const answer = parse(got.text);
    if (got.status !== 200) throw refusal(server, got, answer);
    return { answer, store: got.headers["hapax-store"] };
  }

  /** The first answer with numbers says which store it is. */
  settle(server, store) {
    this.store ??= store;
    if (store === undefined || store !== this.store) {
      throw new HapaxError("store_replaced", `${server.name} has another store than the servers before; its numbers are not used`, { status: 503 });
    }
  }

  close() {
    for (const server of this.all) server.agent.destroy();
  }
}

function parse(text) {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    return {};
  }
}

function refusal(server, { status, headers }, answer) {
  if (typeof answer.code !== "string") return new HapaxError("unavailable", `${server.name} answered with status ${status}; is it a hapax server?`);
  const seconds = Number(headers["retry-after"] ?? 0);
  const retryAfter = seconds > 0 ? Math.min(1000 * seconds, MAX_RETRY_AFTER) : 0;
  return new HapaxError(answer.code, text(answer.detail) || text(answer.title), { final: REFUSED.has(status), status, retryAfter });
}

module.exports = { HapaxError, Servers, invalid };
