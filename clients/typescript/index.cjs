"use strict";

// Unique numbers from hapax servers: https://hapax-id.github.io
//
//   const client = new Client("http://127.0.0.1:8080");
//   const number = await client.tag("orders").next();
//
// A client takes stretches of numbers and hands them out from memory.

const { setTimeout: sleep } = require("node:timers/promises");
const { debuglog } = require("node:util");
const place = require("./place.cjs");
const { HapaxError, Servers, invalid } = require("./servers.cjs");
const { Stretch, codes, now } = require("./stretch.cjs");

const MAX_COUNT = 1_000_000;
const MAX_TAGS = 10_000;
const MAX_WAIT = 3_600_000;
const [QUICK, SLOW] = [5000, 20_000]; // milliseconds that a stretch lasts, around the ten seconds that it should
const [PAUSE, MAX_PAUSE] = [50, 1000]; // milliseconds after all servers were asked in vain
const HAND_BACK = 1000; // milliseconds that an answer to a hand-back is waited for

const debug = debuglog("hapax");
const quiet = { debug, warn: debug };

const states = new Set(); // weak: what is in hand of clients that are there and not closed
const gone = new FinalizationRegistry((ref) => states.delete(ref));

/** What a process has in hand of a tag. */
const newLine = (step) => ({
  step,
  current: undefined,
  spare: undefined,
  fetch: undefined, // the one on its way, for all callers
  last: undefined, // the latest receipt
  dead: false, // it was handed back
  keeps: true, // false: every number is for the call that takes it
  pause: PAUSE,
  retryAt: 0,
});

/** What a client has in one process. A copy of the process begins with another one. */
class State {
  constructor(urls, options, closed, store) {
    this.place = place.here();
    this.lines = new Map();
    this.end = new AbortController();
    if (closed) this.end.abort();
    this.ref = new WeakRef(this);
    states.add(this.ref);
    gone.register(this, this.ref);
    this.servers = new Servers(urls, options, store);
  }

  get closed() {
    return this.end.signal.aborted;
  }

  line(name, step) {
    let line = this.lines.get(name);
    if (line === undefined) {
      if (this.lines.size >= MAX_TAGS) throw new HapaxError("limit_exceeded", `this client has ${MAX_TAGS} tags already; make another one for more`, { final: true });
      line = newLine(step);
      this.lines.set(name, line);
    }
    return line;
  }

  /** Asks until a server answers, the deadline is over, or nobody waits any more. */
  async persist(fetch, path, body, read, asksLess) {
    for (let pause = PAUSE; ; ) {
      let wait;
      try {
        return await this.servers.ask(`${path}/take`, body(), () => fetch.until, read);
      } catch (e) {
        if (!(e instanceof HapaxError) || e.final) throw e;
        if (fetch.error === undefined || e.status) fetch.error = e; // the last that a server said
        const less = asksLess(e);
        if (e.status === 507) {
          if (!less) throw e;
          continue;
        }
        wait = Math.max(pause, e.retryAfter);
        if (now() + wait >= fetch.until || fetch.waiting === 0) throw fetch.error;
      }
      pause = Math.min(MAX_PAUSE, 2 * pause);
      await sleep(wait, undefined, { signal: this.end.signal }).catch(() => {});
      if (this.closed) throw closedError();
    }
  }

  /** Hands back what nobody was given. The next call begins with nothing in hand. */
  async release() {
    const lines = place.isHere(this.place) ? [...this.lines] : []; // those of a copy are not its own
    this.lines.clear();
    const until = now() + HAND_BACK;
    await Promise.all(lines.map(([name, line]) => this.handBack(path(name), line, until)));
  }

  async handBack(path, line, until) {
    if (line.fetch !== undefined) {
      line.fetch.waiting++;
      await within(line.fetch, until).catch(() => {});
    }
    line.dead = true; // from here on, whatever the answer
    const { current } = line;
    const last = line.spare ?? current;
    let unused = last?.left ?? 0;
    // If the two adjoin:
    if (current !== undefined && last !== current && last.returnable >= unused + current.left) unused += current.left;
    if (last?.receipt === undefined || unused < 1) return;
    try {
      await this.servers.ask(`${path}/handback`, { receipt: last.receipt, unused }, () => until, () => {});
    } catch (e) {
      this.servers.logger.debug(`hapax: handing back: ${e.message}`); // a gap
    }
  }
}

/** Takes numbers from servers that share one store. */
class Client {
  #urls;
  #options;
  #state;
  #closing;

  constructor(servers, options = {}) {
    const urls = [servers].flat();
    const { token, minStep = 10, maxStep = 100_000, ahead = true, deadline = 5000, callTimeout = 3000, logger = quiet, tls } = options;
    if (urls.length === 0) throw invalid("no server: want at least one, such as http://127.0.0.1:8080");
    if (token !== undefined && !/^[!-~]+$/.test(token)) throw invalid("invalid token (not shown): want one as hapax token new prints it");
    if (!(isCount(minStep) && isCount(maxStep) && minStep <= maxStep)) {
      throw invalid(`invalid minStep ${minStep} and maxStep ${maxStep}: want 1 to ${MAX_COUNT}, the first no more than the second`);
    }
    for (const [name, value] of Object.entries({ deadline, callTimeout })) checkWait(name, value);
    this.#urls = urls;
    this.#options = { token, minStep, maxStep, ahead, deadline, callTimeout, logger, tls };
    this.#state = new State(urls, this.#options, false, undefined);
  }

  tag(name, { as = "bigint" } = {}) {
    return new Tag(() => this.#here(), this.#options, name, as);
  }

  /** Hands back what is in hand. Later calls fail with the code closed. */
  close() {
    const state = this.#here();
    this.#closing ??= (async () => {
      state.end.abort();
      await state.release();
      state.servers.close();
      states.delete(state.ref);
    })();
    return this.#closing;
  }

  [Symbol.asyncDispose]() {
    return this.close();
  }

  /** What this process has: a copy begins with nothing. */
  #here() {
    const state = this.#state;
    if (place.isHere(state.place)) return state;
    this.#state = new State(this.#urls, this.#options, state.closed, state.servers.store);
    return this.#state;
  }
}

/** A tag's numbers. Make it once or each time: it holds nothing. */
class Tag {
  #here;
  #options;
  #path;
  #convert;

  constructor(here, options, name, as) {
    if (typeof name !== "string" || !name.isWellFormed()) throw new HapaxError("invalid_tag", "invalid tag: want a well-formed string", { final: true });
    const bytes = Buffer.byteLength(name);
    if (bytes < 1 || bytes > 128) throw new HapaxError("invalid_tag", `invalid tag of ${bytes} bytes: want 1 to 128`, { final: true });
    if (!Object.hasOwn(conversions, as)) throw invalid(`invalid as ${JSON.stringify(as)}: want bigint, number or string`);
    this.name = name;
    this.#here = here;
    this.#options = options;
    this.#path = path(name);
    this.#convert = conversions[as];
  }

  /** One number, which nobody else gets. */
  async next(options) {
    return (await this.take(1, options))[0];
  }

  /** Several numbers. */
  async take(count, { deadline = this.#options.deadline, signal } = {}) {
    const until = limit(count, deadline);
    const got = [];
    let first; // stretch of which it got some: later ones end later
    for (;;) {
      signal?.throwIfAborted();
      const state = this.#here();
      if (state.closed) throw closedError();
      const line = state.line(this.name, this.#options.minStep);
      if (first?.over()) { // while the call waited
        got.length = 0;
        first = undefined;
      }
      while (got.length < count && this.#advance(line)) {
        first ??= line.current;
        line.current.moveTo(got, count - got.length);
      }
      if (got.length === count) {
        if (this.#wantsAhead(line)) line.fetch = this.#ahead(state, line);
        return got.map(this.#convert);
      }
      const need = count - got.length;
      const mine = line.fetch === undefined || !line.keeps;
      const fetch = mine ? this.#fetch(state, line, need, until) : line.fetch;
      fetch.until = Math.max(fetch.until, until);
      fetch.waiting++;
      try {
        const own = await within(fetch, until, signal);
        if (mine) for (const n of own) got.push(n);
      } catch (e) {
        if (mine || e.status !== 507) throw e; // fewer may be left than another call needs
      } finally {
        fetch.waiting--;
      }
    }
  }

  /** Several numbers with the texts that show them. None is kept for later. */
  async codes(count = 1, { deadline = this.#options.deadline, signal } = {}) {
    const until = limit(count, deadline);
    signal?.throwIfAborted();
    const state = this.#here();
    if (state.closed) throw closedError();
    const fetch = { until, waiting: 1 };
    begin(fetch, state.persist(fetch, this.#path, () => ({ count, codes: true }), (answer) => codes(answer, count), () => false));
    try {
      const got = await within(fetch, until, signal);
      return got.map(({ id, ...rest }) => ({ id: this.#convert(id), ...rest }));
    } finally {
      fetch.waiting--;
    }
  }

  /** Puts the spare stretch in the place of one that is used up or over, and lets the step follow.
   * It reports whether there is a number. */
  #advance(line) {
    for (;;) {
      const { current } = line;
      if (current !== undefined) {
        if (current.left > 0 && !current.over()) return true;
        const lasted = now() - current.began;
        if (current.left === 0 && lasted < QUICK) line.step = Math.min(this.#options.maxStep, 2 * line.step);
        else if (lasted > SLOW) line.step = Math.max(this.#options.minStep, Math.floor(line.step / 2));
      }
      line.current = line.spare;
      line.spare = undefined;
      if (line.current === undefined) return false;
      line.current.began = now();
    }
  }

  #wantsAhead(line) {
    const { current } = line;
    return this.#options.ahead && line.keeps && line.fetch === undefined && line.spare === undefined && current !== undefined && 2 * current.used >= current.count && now() >= line.retryAt;
  }

  /** Fetches for callers, the first of whom needs so many. */
  #fetch(state, line, need, until) {
    const fetch = { until, waiting: 0 };
    let count = need;
    let modest = false;
    const body = () => {
      count = modest || !line.keeps ? need : Math.min(MAX_COUNT, Math.max(line.step, need));
      return request(line, count);
    };
    const asksLess = (e) => {
      if (e.status !== 429 && e.status !== 507) return false;
      modest = true;
      line.step = this.#options.minStep;
      return count > need;
    };
    const run = async () => {
      try {
        return keep(line, await state.persist(fetch, this.#path, body, (answer, sent) => new Stretch(answer, count, sent), asksLess), need);
      } finally {
        if (line.fetch === fetch) line.fetch = undefined;
      }
    };
    if (line.keeps) line.fetch = fetch;
    return begin(fetch, run());
  }

  /** Fetches the next stretch, and disturbs nobody if that fails. */
  #ahead(state, line) {
    const fetch = { until: now() + this.#options.deadline, waiting: 0 };
    const run = async () => {
      const count = line.step;
      try {
        keep(line, await state.servers.ask(`${this.#path}/take`, request(line, count), () => fetch.until, (answer, sent) => new Stretch(answer, count, sent)), 0);
      } catch (e) {
        line.retryAt = now() + Math.max(line.pause, e.retryAfter ?? 0);
        line.pause = Math.min(MAX_PAUSE, 2 * line.pause);
        if (e.status === 429 || e.status === 507) line.step = this.#options.minStep;
        this.#options.logger.debug(`hapax: fetching ${JSON.stringify(this.name)} ahead: ${e.message}`);
      } finally {
        if (line.fetch === fetch) line.fetch = undefined;
      }
    };
    return begin(fetch, run());
  }
}

const conversions = {
  bigint: (n) => n,
  string: String,
  number(n) {
    if (n > Number.MAX_SAFE_INTEGER) throw invalid(`the number ${n} is above 2^53 - 1: take it as a bigint or a string`);
    return Number(n);
  },
};

const isCount = (n) => Number.isSafeInteger(n) && n >= 1 && n <= MAX_COUNT;

function checkWait(name, ms) {
  if (!(typeof ms === "number" && ms > 0 && ms <= MAX_WAIT)) throw invalid(`invalid ${name} ${ms}: want more than 0, up to ${MAX_WAIT} milliseconds`);
}

function limit(count, deadline) {
  if (!isCount(count)) throw invalid(`invalid count ${count}: want 1 to ${MAX_COUNT}`);
  checkWait("deadline", deadline);
  return now() + deadline;
}

const request = (line, count) => (line.last === undefined ? { count } : { count, after: line.last });

/** Puts a stretch in hand; or returns what the call that asked needs, if none may be kept. */
function keep(line, stretch, need) {
  if (line.dead) return []; // a hand-back was sent
  line.keeps &&= stretch.keeps;
  if (!line.keeps) return stretch.moveTo([], need);
  Object.assign(line, { spare: stretch, last: stretch.receipt, pause: PAUSE, retryAt: 0 });
  return [];
}

function begin(fetch, promise) {
  promise.catch(() => {}); // whoever waits learns it
  fetch.promise = promise;
  return fetch;
}

/** Waits for a fetch until a deadline, which leaves it to the others. */
function within(fetch, until, signal) {
  return new Promise((resolve, reject) => {
    const end = (settle, value) => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
      settle(value);
    };
    const abort = () => end(reject, signal.reason);
    const late = () => end(reject, fetch.error ?? new HapaxError("unavailable", "no number came in time"));
    const timer = setTimeout(late, Math.max(0, until - now()));
    signal?.addEventListener("abort", abort);
    fetch.promise.then((value) => end(resolve, value), (e) => end(reject, e));
  });
}

function path(tag) {
  return `/v1/tags/${/^\.+$/.test(tag) ? tag.replaceAll(".", "%2E") : encodeURIComponent(tag)}`;
}

const closedError = () => new HapaxError("closed", "the client was closed", { final: true });

// What is in hand when there is nothing left to do.
process.on("beforeExit", () => {
  for (const ref of states) ref.deref()?.release();
});

module.exports = { Client, HapaxError, Tag };
