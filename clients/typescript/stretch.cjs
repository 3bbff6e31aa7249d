"use strict";

const MAX_NUMBER = (1n << 63n) - 1n;

/** Milliseconds of a clock that only goes forward. */
const now = () => performance.now();

class Malformed extends Error {}

/** Numbers that were taken with one request, and how many of them are used. */
class Stretch {
  constructor(answer, asked, sent) {
    Object.assign(this, numbers(answer, asked)); // ids, or first and delta
    this.count = answer.count;
    this.used = 0;
    this.receipt = typeof answer.receipt === "string" && answer.receipt !== "" ? answer.receipt : undefined;
    this.returnable = Number.isSafeInteger(answer.returnable) ? answer.returnable : 0;
    this.began = 0;
    const valid = answer.valid_for ?? 0;
    if (typeof valid !== "number" || !(valid >= 0)) throw new Malformed("valid_for");
    this.keeps = valid > 0;
    this.ends = sent.clock + 1000 * valid;
    this.endsWall = sent.wall + 1000 * valid;
  }

  get left() {
    return this.count - this.used;
  }

  /** The clock that only goes forward may stand still while a machine sleeps. */
  over() {
    return now() >= this.ends || Date.now() >= this.endsWall;
  }

  /** Moves up to most numbers to the end of into. */
  moveTo(into, most) {
    for (const end = Math.min(this.count, this.used + most); this.used < end; this.used++) {
      into.push(this.ids ? this.ids[this.used] : this.first + BigInt(this.used) * this.delta);
    }
    return into;
  }
}

function numbers(answer, asked) {
  const { count } = answer;
  if (!Number.isSafeInteger(count) || count < 1 || count > asked) throw new Malformed("count");
  if (answer.first !== undefined) {
    const first = integer(answer.first);
    const delta = integer(answer.delta);
    if (first + BigInt(count - 1) * delta > MAX_NUMBER) throw new Malformed("first");
    return { first, delta };
  }
  if (!Array.isArray(answer.ids) || answer.ids.length !== count) throw new Malformed("ids");
  return { ids: answer.ids.map(integer) };
}

function integer(text) {
  if (typeof text !== "string" || !/^[0-9]{1,19}$/.test(text)) throw new Malformed(`${String(JSON.stringify(text)).slice(0, 40)} is no number`);
  const n = BigInt(text);
  if (n < 1n || n > MAX_NUMBER) throw new Malformed(`${text} is no number`);
  return n;
}

const text = (value) => (typeof value === "string" ? value : ""); // String fails for some objects

/** The numbers of an answer with their texts. */
function codes(answer, asked) {
  const stretch = new Stretch(answer, asked, { clock: 0, wall: 0 });
  if (!Array.isArray(answer.codes) || answer.codes.length !== stretch.count || !answer.codes.every((code) => typeof code === "string")) throw new Malformed("codes");
  return stretch.moveTo([], stretch.count).map((id, i) => ({ id, text: answer.codes[i], period: text(answer.period) }));
}

module.exports = { Malformed, Stretch, codes, now, text };
