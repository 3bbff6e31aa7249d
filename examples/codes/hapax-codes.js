// Encodes and decodes hapax codes. Needs nothing but node:crypto, which Node.js,
// Deno and Bun have.
//
//   const code = new Code("{id:8:crockford32:feistel=k1:group=4}{check}", "coupons", { k1: key })
//   code.encode(42n)            // "…", the text of number 42
//   code.decode("S1D8-Q3HCW")   // { number, period }, or a CodeError with its position
//
//   const day = new Code("{zone:Europe/Berlin}INV-{yyyy}{MM}{dd}-{seq:6}{check}", "invoices")
//   day.encode(428n, "20261121")
//
// The spec is the canonical one, as hapax shows it. Numbers are BigInt. A period is
// the name of its line, such as 20261121, 2026Q4 or 2026W47; it is empty where
// numbers never restart.

import { createCipheriv, createHash, createHmac } from "node:crypto";

const LIMIT = 1n << 63n; // numbers are below

const CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
export const ALPHABETS = {
  10: "0123456789",
  16: "0123456789abcdef",
  crockford32: CROCKFORD,
  "crockford32-lower": CROCKFORD.toLowerCase(),
  36: "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
  58: "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",
  62: "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
};

/** The text is not a code; pos is where, in UTF-16 units from 0. */
export class CodeError extends Error {
  constructor(pos, want, check = false) {
    super(`invalid code at position ${pos + 1}: want ${want}`);
    this.pos = pos;
    this.check = check;
  }
}

// --- bijections of [0, n) ---

const mod = (x, n) => ((x % n) + n) % n;

/** Returns the least a with a·a >= n. */
function ceilSqrt(n) {
  let a = 0n;
  for (let bit = 1n << 31n; bit > 0n; bit >>= 1n) {
    if ((a | bit) * (a | bit) < n) a |= bit;
  }
  return a + 1n;
}

export class Feistel {
  constructor(key, tag, keyID, n) {
    key = Buffer.from(key);
    if (key.length < 16 || key.length > 64 || key.at(-1) === 13 || key.at(-1) === 10) {
      throw new RangeError(`key ${keyID} has ${key.length} bytes: want 16 to 64, without the line break at the end of its file`);
    }
    const sized = (text) => {
      const bytes = Buffer.from(text);
      return Buffer.concat([Buffer.from([bytes.length >> 8, bytes.length & 255]), bytes]);
    };
    const size = Buffer.alloc(8);
    size.writeBigUInt64BE(n);
    const info = Buffer.concat([Buffer.from("hapax feistel 1"), size, sized(tag), sized(keyID)]);
    const aesKey = createHmac("sha256", key).update(info).digest().subarray(0, 16);
    this.aes = createCipheriv("aes-128-ecb", aesKey, null).setAutoPadding(false);
    this.block = Buffer.alloc(16);
    this.n = n;
    this.a = ceilSqrt(n);
    this.b = (n + this.a - 1n) / this.a;
    this.rounds = n < 1n << 20n ? 24 : 18;
  }

  #round(i, half, tweak, m) {
    this.block.writeUInt32LE(Number(half), 0);
    this.block.writeUInt32LE(i, 4);
    this.block.writeBigUInt64LE(tweak, 8);
    return (this.aes.update(this.block).readBigUInt64LE(0) * m) >> 64n;
  }

  mix(x, tweak = 0n) {
    do {
      let left = x / this.b;
      let right = x % this.b;
      for (let i = 0; i < this.rounds; i += 2) {
        left = (left + this.#round(i, right, tweak, this.a)) % this.a;
        right = (right + this.#round(i + 1, left, tweak, this.b)) % this.b;
      }
      x = left * this.b + right;
    } while (x >= this.n);
    return x;
  }

  unmix(y, tweak = 0n) {
    do {
      let left = y / this.b;
      let right = y % this.b;
      for (let i = this.rounds - 2; i >= 0; i -= 2) {
        right = mod(right - this.#round(i + 1, left, tweak, this.b), this.b);
        left = mod(left - this.#round(i, right, tweak, this.a), this.a);
      }
      y = left * this.b + right;
    } while (y >= this.n);
    return y;
  }
}

export class Multiply {
  constructor(n) {
    const gcd = (x, y) => (y === 0n ? x : gcd(y, x % y));
    this.n = n;
    this.by = ((n * 0x9e3779b97f4a7c15n) >> 64n) | 1n;
    while (gcd(this.by, n) !== 1n) this.by += 2n;
    let [r0, r1, t0, t1] = [n, this.by % n, 0n, 1n];
    while (r1 !== 0n) {
      const q = r0 / r1;
      [r0, r1, t0, t1] = [r1, r0 - q * r1, t1, t0 - q * t1];
    }
    this.inverse = mod(t0, n);
  }

  mix(x) {
    return (x * this.by) % this.n;
  }

  unmix(y) {
    return (y * this.inverse) % this.n;
  }
}

export class Reverse {
  constructor(n) {
    this.bits = n.toString(2).length - 1;
  }

  mix(x) {
    return BigInt("0b" + [...x.toString(2).padStart(this.bits, "0")].reverse().join(""));
  }

  unmix(y) {
    return this.mix(y);
  }
}

const plain = { mix: (x) => x, unmix: (y) => y };

// --- check characters, from the values of the digits ---

const DAMM = [
  "0317598642", "7092154863", "4206871359", "1750983426", "6123045978",
  "3674209581", "5869720134", "8945362017", "9438617205", "2581436790",
];
const POLYNOMIALS = { 16: 0b10011, 32: 0b100101, 64: 0b1000011 };

export const CHECKS = {
  damm: (values) => values.reduce((s, v) => Number(DAMM[s][v]), 0),
  luhn(values) {
    let s = 0;
    values.forEach((v, i) => {
      const d = (values.length - i) % 2 === 1 ? 2 * v : v;
      s += Math.floor(d / 10) + (d % 10);
    });
    return (10 - (s % 10)) % 10;
  },
  mod97: (values) => 98 - ((values.reduce((s, v) => (s * 10 + v) % 97, 0) * 100) % 97),
  iso7064(values, size) {
    const p = values.reduce((p, v) => (((p + v) % size || size) * 2) % (size + 1), size);
    return (size + 1 - p) % size;
  },
  gf(values, size) {
    return values.reduce((s, v) => {
      const t = (s ^ v) << 1;
      return t >= size ? t ^ POLYNOMIALS[size] : t;
    }, 0);
  },
};

const defaultCheck = (size) => (size === 10 ? "damm" : size === 32 || size === 64 ? "gf" : "iso7064");

// --- codes ---

// Of each part of a period: its width, and the least and the greatest it shows.
const PARTS = { yyyy: [4, 1, 9999], yy: [2, 0, 99], Q: [1, 1, 4], MM: [2, 1, 12], GGGG: [4, 1, 9999], ww: [2, 1, 53], dd: [2, 1, 31], HH: [2, 0, 23] };
const tweakOf = (period) => BigInt(period.replace(/\D/g, "") || 0);
const pad = (n, width) => String(n).padStart(width, "0");

export class Code {
  constructor(spec, tag = "", keys = {}) {
    Object.assign(this, { tag, keys, fiscal: 1, fiscalEnd: false, group: 0, check: null, uuid: null });
    let keyID = "";
    const parts = [];
    for (const [, text, part] of spec.matchAll(/((?:[^{}]|\{\{|\}\})+)|\{([^{}]+)\}/g)) {
      if (text) {
        parts.push({ kind: "text", text: text.replaceAll("{{", "{").replaceAll("}}", "}") });
        continue;
      }
      const [name, ...args] = part.split(":");
      if (name === "zone") continue;
      if (name === "fiscal") {
        this.fiscal = Number(args[0]);
        this.fiscalEnd = args.length === 2;
      } else if (name === "type") {
        parts.push({ kind: "text", text: args[0] + "_" });
      } else if (["id", "seq", "uuid"].includes(name)) {
        keyID = this.#number(name, args);
        parts.push({ kind: "number" });
      } else if (name === "check") {
        this.check = args[0] ?? defaultCheck(this.chars.length);
        parts.push({ kind: "check" });
      } else if (name === "key" || name in PARTS) {
        parts.push({ kind: name });
      } else {
        throw new Error(`unknown part {${part}}`);
      }
    }
    this.parts = parts.map((p) => (p.kind === "key" ? { kind: "text", text: keyID } : p));
    this.checkLength = this.check === "mod97" ? 2 : 1;
    this.fixed = 0;
    for (const { kind, text } of this.parts) {
      this.fixed += kind === "text" ? text.length : kind === "check" ? this.checkLength : (PARTS[kind]?.[0] ?? 0);
    }
  }

  #number(name, args) {
    let bands;
    if (name === "uuid") {
      this.uuid = args[0] === "base32" ? args.shift() : "hex";
      this.chars = ALPHABETS[this.uuid === "hex" ? 16 : "crockford32-lower"];
      const mark = createHash("sha256").update("hapax uuid 1" + this.tag).digest();
      this.mark = mark.readBigUInt64BE(0) >> 5n;
      bands = [[0, 0n, LIMIT]];
    } else {
      const width = args.shift();
      const alphabet = args[0] in ALPHABETS || args[0]?.startsWith("=") ? args.shift() : "10";
      this.chars = ALPHABETS[alphabet] ?? alphabet.slice(1);
      const power = (w) => {
        const p = BigInt(this.chars.length) ** BigInt(w);
        return p < LIMIT ? p : LIMIT;
      };
      let w = parseInt(width, 10);
      bands = [[w, 0n, power(w)]];
      while (width.endsWith("+") && power(w) < LIMIT) {
        bands.push([w + 1, power(w), power(w + 1)]);
        w++;
      }
    }
    let mixer = () => plain;
    let keyID = "";
    if (args[0] && !args[0].startsWith("group=")) {
      let kind;
      [kind, keyID = ""] = args.shift().split("=");
      mixer = {
        feistel: (n) => new Feistel(this.keys[keyID], this.tag, keyID, n),
        multiply: (n) => new Multiply(n),
        reverse: (n) => new Reverse(n),
      }[kind];
    }
    if (args[0]) this.group = Number(args[0].slice("group=".length));
    this.bands = bands.map(([width, low, high]) => ({ width, low, high, mixer: mixer(high - low) }));
    return keyID;
  }

  encode(number, period = "") {
    const band = this.bands.find(({ low, high }) => low <= number && number < high);
    if (!band) throw new RangeError(`number ${number}: want 0 to ${this.bands.at(-1).high - 1n}`);
    const shown = band.low + band.mixer.mix(number - band.low, tweakOf(period));
    const fields = this.#fields(period);
    const seen = [];
    let out = "";
    for (const { kind, text } of this.parts) {
      if (kind === "text") out += text;
      else if (kind === "number") out += this.#show(band.width, shown, seen);
      else if (kind === "check") out += this.#sum(seen);
      else {
        const digits = pad(fields[kind], PARTS[kind][0]);
        out += digits;
        seen.push(...[...digits].map(Number));
      }
    }
    return out;
  }

  decode(text) {
    const band = this.bands.find(({ width }) => this.fixed + this.#length(width) === text.length);
    if (!band) throw this.#lengthError(text);
    const at = {};
    const fields = {};
    const seen = [];
    let pos = 0;
    let shown;
    const expect = (want, error) => {
      for (const c of want.split("")) {
        if (text[pos] !== c) throw error(text[pos]);
        pos++;
      }
    };
    for (const { kind, text: want } of this.parts) {
      at[kind] = pos;
      if (kind === "text") {
        expect(want, () => new CodeError(pos, JSON.stringify(want)));
      } else if (kind === "number") {
        const end = pos + this.#length(band.width);
        shown = this.#read(text, pos, end, seen);
        pos = end;
      } else if (kind === "check") {
        expect(this.#sum(seen), (c) => new CodeError(pos, "the check character of what comes before it", this.chars.includes(c)));
      } else {
        const [width, least, most] = PARTS[kind];
        for (let i = 0; i < width; i++, pos++) {
          const d = ALPHABETS[10].indexOf(text[pos]);
          if (d < 0) throw new CodeError(pos, "a digit");
          seen.push(d);
        }
        fields[kind] = Number(text.slice(at[kind], pos));
        if (fields[kind] < least || fields[kind] > most) throw new CodeError(at[kind], `${least} to ${most}`);
      }
    }
    const period = Object.keys(fields).length > 0 ? this.#period(fields, at) : "";
    if (shown < band.low || shown >= band.high) throw new CodeError(at.number, `a number from ${band.low} to ${band.high - 1n}`);
    return { number: band.low + band.mixer.unmix(shown - band.low, tweakOf(period)), period };
  }

  #length(width) {
    if (this.uuid) return this.uuid === "hex" ? 36 : 26;
    return width + (this.group ? Math.floor((width - 1) / this.group) : 0);
  }

  #lengthError(text) {
    let pos = 0;
    for (const part of this.parts) {
      if (part.kind !== "text") break;
      for (const c of part.text.split("")) {
        if (text[pos] !== c) return new CodeError(pos, JSON.stringify(part.text));
        pos++;
      }
    }
    const longest = this.fixed + this.#length(this.bands.at(-1).width);
    return new CodeError(Math.min(text.length, longest), "a code's length");
  }

  #show(width, shown, seen) {
    if (this.uuid) return this.#showUUID(shown);
    const size = BigInt(this.chars.length);
    const digits = [];
    for (let i = 0; i < width; i++) {
      digits.unshift(Number(shown % size));
      shown /= size;
    }
    seen.push(...digits);
    return digits.map((d, i) => (this.group && i > 0 && i % this.group === 0 ? "-" : "") + this.chars[d]).join("");
  }

  #read(text, pos, end, seen) {
    if (this.uuid) return this.#readUUID(text, pos, end);
    const size = BigInt(this.chars.length);
    let shown = 0n;
    for (let i = 0; pos < end; i++, pos++) {
      if (this.group && i % (this.group + 1) === this.group) {
        if (text[pos] !== "-") throw new CodeError(pos, "a hyphen");
        continue;
      }
      const v = this.chars.indexOf(text[pos]);
      if (v < 0) throw new CodeError(pos, "a character of " + this.chars);
      seen.push(v);
      shown = shown * size + BigInt(v);
    }
    return shown;
  }

  #showUUID(shown) {
    const bits = ((shown >> 15n) << 80n) | (8n << 76n) | (((shown >> 3n) & 0xfffn) << 64n) | (2n << 62n) | ((shown & 7n) << 59n) | this.mark;
    if (this.uuid === "hex") {
      return bits.toString(16).padStart(32, "0").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
    }
    let text = "";
    for (let n = 125n; n >= 0n; n -= 5n) text += this.chars[Number((bits >> n) & 31n)];
    return text;
  }

  #readUUID(text, pos, end) {
    const step = this.uuid === "hex" ? 4n : 5n;
    let bits = 0n;
    for (let i = pos; i < end; i++) {
      if (this.uuid === "hex" && [8, 13, 18, 23].includes(i - pos)) {
        if (text[i] !== "-") throw new CodeError(i, "a hyphen");
        continue;
      }
      const v = this.chars.indexOf(text[i]);
      if (v < 0) throw new CodeError(i, "a character of " + this.chars);
      bits = (bits << step) | BigInt(v);
    }
    const shown = ((((bits >> 80n) & ((1n << 48n) - 1n)) << 15n) & (LIMIT - 1n)) | (((bits >> 64n) & 0xfffn) << 3n) | ((bits >> 59n) & 7n);
    const want = this.#showUUID(shown);
    for (let i = 0; i < want.length; i++) {
      if (text[pos + i] !== want[i]) throw new CodeError(pos + i, `the UUID of a number of this tag, which has ${want[i]} there`);
    }
    return shown;
  }

  #sum(seen) {
    const size = this.chars.length;
    const s = CHECKS[this.check](seen, size);
    return this.checkLength === 2 ? this.chars[Math.floor(s / size)] + this.chars[s % size] : this.chars[s];
  }

  // What the parts show of a period, and back.

  #fields(period) {
    if (!period) return {};
    const [, year, quarter, week, month, day, hour] = /^(\d{4})(?:Q(\d)|W(\d\d)|(\d\d)(?:(\d\d)(\d\d)?)?)?$/.exec(period);
    return {
      yyyy: Number(year), GGGG: Number(year), yy: Number(year) - 2000,
      Q: quarter ? Number(quarter) : this.#quarter(Number(month)),
      ww: Number(week), MM: Number(month), dd: Number(day), HH: Number(hour),
    };
  }

  #quarter(month) {
    return Math.floor(mod(month - this.fiscal, 12) / 3) + 1;
  }

  #period(f, at) {
    const year = f.yyyy ?? f.GGGG ?? 2000 + f.yy;
    let name = pad(year, 4);
    const day = (y, month, d) => {
      const date = new Date(Date.UTC(2000, month - 1, d));
      date.setUTCFullYear(y, month - 1, d); // years before 100 are themselves
      return date;
    };
    if ("ww" in f) {
      // A year has 53 weeks if it begins or ends on a Thursday.
      const last = day(year, 1, 1).getUTCDay() === 4 || day(year, 12, 31).getUTCDay() === 4 ? 53 : 52;
      if (f.ww > last) throw new CodeError(at.ww, `a week up to ${last}`);
      return `${name}W${pad(f.ww, 2)}`;
    }
    if (!("MM" in f)) return "Q" in f ? `${name}Q${f.Q}` : name;
    for (const part of ["MM", "dd", "HH"]) {
      if (part in f) name += pad(f[part], 2);
    }
    if ("dd" in f) {
      const of = year - (this.fiscalEnd ? 1 : 0) + (f.MM < this.fiscal ? 1 : 0);
      const last = day(of, f.MM + 1, 0).getUTCDate();
      if (f.dd > last) throw new CodeError(at.dd, `a day up to ${last}`);
    }
    if ("Q" in f && f.Q !== this.#quarter(f.MM)) throw new CodeError(at.Q, "the quarter of the month");
    return name;
  }
}
