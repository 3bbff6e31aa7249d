// Compares hapax-codes.js with known answers: node check-vectors.js vectors.json

import { readFileSync } from "node:fs";
import { ALPHABETS, CHECKS, Code, CodeError, Feistel, Multiply, Reverse } from "./hapax-codes.js";

const v = JSON.parse(readFileSync(process.argv[2], "utf8"));
const keys = Object.fromEntries(Object.entries(v.keys).map(([id, key]) => [id, Buffer.from(key, "hex")]));
let count = 0;

function same(what, got, want) {
  count++;
  if (got !== want) {
    console.error(`${JSON.stringify(what)}: got ${got}, want ${want}`);
    process.exit(1);
  }
}

for (const [name, chars] of Object.entries(v.alphabets)) same(name, ALPHABETS[name], chars);
for (const c of v.checks) same(c, CHECKS[c.name](c.values, c.size), c.sum);
for (const m of v.mixers) {
  const n = BigInt(m.n);
  const tweak = BigInt(m.tweak ?? 0);
  const mixer = {
    feistel: () => new Feistel(keys[m.key], m.tag, m.key, n),
    multiply: () => new Multiply(n),
    reverse: () => new Reverse(n),
  }[m.name]();
  for (const [x, y] of m.pairs) {
    same(m, mixer.mix(BigInt(x), tweak), BigInt(y));
    same(m, mixer.unmix(BigInt(y), tweak), BigInt(x));
  }
}
for (const c of v.codes) {
  const code = new Code(c.spec, c.tag, keys);
  for (const { number, period, text } of c.cases) {
    same(c.spec, code.encode(BigInt(number), period), text);
    const got = code.decode(text);
    same(c.spec, `${got.number} of ${got.period}`, `${number} of ${period}`);
  }
}
for (const r of v.refused) {
  let got;
  try {
    got = new Code(r.spec, r.tag, keys).decode(r.text).number;
  } catch (e) {
    if (!(e instanceof CodeError)) throw e;
    got = `${e.pos} ${e.check}`;
  }
  same(r, got, `${r.pos} ${r.check}`);
}
console.log(count);
