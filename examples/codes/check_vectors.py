"""Compares hapax_codes.py with known answers: python3 check_vectors.py vectors.json"""

import json
import sys

from hapax_codes import ALPHABETS, CHECKS, Code, CodeError, Feistel, Multiply, Reverse


def main(path):
    with open(path, encoding="utf-8") as f:
        v = json.load(f)
    keys = {name: bytes.fromhex(key) for name, key in v["keys"].items()}
    count = 0

    def same(what, got, want):
        nonlocal count
        count += 1
        if got != want:
            sys.exit(f"{what}: got {got!r}, want {want!r}")

    for name, chars in v["alphabets"].items():
        same(name, ALPHABETS[name], chars)
    for c in v["checks"]:
        same(c, CHECKS[c["name"]](c["values"], c["size"]), c["sum"])
    for m in v["mixers"]:
        n, tweak = int(m["n"]), int(m.get("tweak", 0))
        mixer = {
            "feistel": lambda: Feistel(keys[m["key"]], m["tag"], m["key"], n),
            "multiply": lambda: Multiply(n),
            "reverse": lambda: Reverse(n),
        }[m["name"]]()
        for x, y in m["pairs"]:
            same(m, mixer.mix(int(x), tweak), int(y))
            same(m, mixer.unmix(int(y), tweak), int(x))
    for c in v["codes"]:
        code = Code(c["spec"], c["tag"], keys)
        for case in c["cases"]:
            same(c["spec"], code.encode(int(case["number"]), case["period"]), case["text"])
            same(c["spec"], code.decode(case["text"]), (int(case["number"]), case["period"]))
    for r in v["refused"]:
        code = Code(r["spec"], r["tag"], keys)
        try:
            got = code.decode(r["text"])
        except CodeError as e:
            got = (e.pos, e.check)
        same(r, got, (r["pos"], r["check"]))
    print(count)


main(sys.argv[1])
