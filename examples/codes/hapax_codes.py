"""Encodes and decodes hapax codes. Needs nothing but Python 3.9 or later.

    code = Code("{id:8:crockford32:feistel=k1:group=4}{check}", "coupons", {"k1": key})
    code.encode(42)            # "…", the text of number 42
    code.decode("S1D8-Q3HCW")  # (number, period), or CodeError with its position

    day = Code("{zone:Europe/Berlin}INV-{yyyy}{MM}{dd}-{seq:6}{check}", "invoices")
    day.encode(428, "20261121")

The spec is the canonical one, as hapax shows it. A period is the name of its line,
such as 20261121, 2026Q4 or 2026W47; it is empty where numbers never restart.
"""

import calendar
import datetime
import hashlib
import hmac
import math
import re

LIMIT = 1 << 63  # numbers are below

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ALPHABETS = {
    "10": "0123456789",
    "16": "0123456789abcdef",
    "crockford32": CROCKFORD,
    "crockford32-lower": CROCKFORD.lower(),
    "36": "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "58": "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz",
    "62": "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
}


class CodeError(ValueError):
    """The text is not a code; pos is where, in characters from 0."""

    def __init__(self, pos, want, check=False):
        super().__init__(f"invalid code at position {pos + 1}: want {want}")
        self.pos, self.check = pos, check


# --- AES-128 of one block ---


def _tables():
    sbox, p, q = [0x63] * 256, 1, 1
    while True:
        p = p ^ (p << 1) ^ (0x11B if p & 0x80 else 0)  # times 3
        q ^= q << 1
        q ^= q << 2
        q = (q ^ q << 4) & 0xFF
        if q & 0x80:
            q ^= 0x09  # divided by 3
        sbox[p & 0xFF] = 0x63 ^ q ^ _rot(q, 1) ^ _rot(q, 2) ^ _rot(q, 3) ^ _rot(q, 4)
        if p & 0xFF == 1:
            break
    columns = []
    for s in sbox:
        double = (s << 1) ^ (0x11B if s & 0x80 else 0)
        columns.append(double << 24 | s << 16 | s << 8 | double ^ s)
    return sbox, [[c >> n | (c << 32 - n) & 0xFFFFFFFF for c in columns] for n in (0, 8, 16, 24)]


def _rot(x, n):
    return (x << n | x >> 8 - n) & 0xFF


SBOX, COLUMNS = _tables()


class AES:
    def __init__(self, key):
        words = [int.from_bytes(key[i : i + 4], "big") for i in range(0, 16, 4)]
        rcon = 1
        for i in range(4, 44):
            w = words[-1]
            if i % 4 == 0:
                w = (w << 8 | w >> 24) & 0xFFFFFFFF
                w = sum(SBOX[w >> n & 0xFF] << n for n in (0, 8, 16, 24)) ^ rcon << 24
                rcon = rcon << 1 ^ (0x11B if rcon & 0x80 else 0)
            words.append(words[-4] ^ w)
        self.words = words

    def encrypt(self, block):
        k, (t0, t1, t2, t3) = self.words, COLUMNS
        s = [int.from_bytes(block[4 * i : 4 * i + 4], "big") ^ k[i] for i in range(4)]
        for r in range(4, 40, 4):
            s = [
                t0[s[i] >> 24] ^ t1[s[i - 3] >> 16 & 0xFF] ^ t2[s[i - 2] >> 8 & 0xFF] ^ t3[s[i - 1] & 0xFF] ^ k[r + i]
                for i in range(4)
            ]
        return b"".join(
            (
                (SBOX[s[i] >> 24] << 24 | SBOX[s[i - 3] >> 16 & 0xFF] << 16 | SBOX[s[i - 2] >> 8 & 0xFF] << 8 | SBOX[s[i - 1] & 0xFF])
                ^ k[40 + i]
            ).to_bytes(4, "big")
            for i in range(4)
        )


# --- bijections of [0, n) ---


class Feistel:
    def __init__(self, key, tag, key_id, n):
        if not 16 <= len(key) <= 64 or key[-1:] in (b"\r", b"\n"):
            raise ValueError(f"key {key_id} has {len(key)} bytes: want 16 to 64, without the line break at the end of its file")
        tag, key_id = tag.encode(), key_id.encode()
        info = b"hapax feistel 1" + n.to_bytes(8, "big")
        info += len(tag).to_bytes(2, "big") + tag + len(key_id).to_bytes(2, "big") + key_id
        self.aes = AES(hmac.new(key, info, hashlib.sha256).digest()[:16])
        self.n = n
        self.a = math.isqrt(n - 1) + 1
        self.b = -(-n // self.a)
        self.rounds = 24 if n < 1 << 20 else 18

    def _round(self, i, half, tweak, m):
        block = half.to_bytes(4, "little") + i.to_bytes(4, "little") + tweak.to_bytes(8, "little")
        return int.from_bytes(self.aes.encrypt(block)[:8], "little") * m >> 64

    def mix(self, x, tweak=0):
        while True:
            left, right = divmod(x, self.b)
            for i in range(0, self.rounds, 2):
                left = (left + self._round(i, right, tweak, self.a)) % self.a
                right = (right + self._round(i + 1, left, tweak, self.b)) % self.b
            x = left * self.b + right
            if x < self.n:
                return x

    def unmix(self, y, tweak=0):
        while True:
            left, right = divmod(y, self.b)
            for i in range(self.rounds - 2, -1, -2):
                right = (right - self._round(i + 1, left, tweak, self.b)) % self.b
                left = (left - self._round(i, right, tweak, self.a)) % self.a
            y = left * self.b + right
            if y < self.n:
                return y


class Multiply:
    def __init__(self, n):
        by = n * 0x9E3779B97F4A7C15 >> 64 | 1
        while math.gcd(by, n) != 1:
            by += 2
        self.n, self.by, self.inverse = n, by, pow(by, -1, n)

    def mix(self, x, tweak=0):
        return x * self.by % self.n

    def unmix(self, y, tweak=0):
        return y * self.inverse % self.n


class Reverse:
    def __init__(self, n):
        self.bits = n.bit_length() - 1

    def mix(self, x, tweak=0):
        return int(f"{x:0{self.bits}b}"[::-1], 2)

    unmix = mix


class Plain:
    def mix(self, x, tweak=0):
        return x

    unmix = mix


# --- check characters, from the values of the digits ---

DAMM = """0317598642 7092154863 4206871359 1750983426 6123045978
3674209581 5869720134 8945362017 9438617205 2581436790""".split()


def damm(values, size):
    s = 0
    for v in values:
        s = int(DAMM[s][v])
    return s


def luhn(values, size):
    s = 0
    for i, v in enumerate(reversed(values)):
        s += v if i % 2 else sum(divmod(2 * v, 10))
    return -s % 10


def mod97(values, size):
    s = 0
    for v in values:
        s = (s * 10 + v) % 97
    return 98 - s * 100 % 97


def iso7064(values, size):
    p = size
    for v in values:
        p = ((p + v) % size or size) * 2 % (size + 1)
    return (size + 1 - p) % size


def gf(values, size):
    poly = {16: 0b10011, 32: 0b100101, 64: 0b1000011}[size]
    s = 0
    for v in values:
        s = (s ^ v) << 1
        if s >= size:
            s ^= poly
    return s


CHECKS = {"damm": damm, "luhn": luhn, "mod97": mod97, "iso7064": iso7064, "gf": gf}


def default_check(size):
    return "damm" if size == 10 else "gf" if size in (32, 64) else "iso7064"


# --- codes ---

WIDTHS = {"yyyy": 4, "yy": 2, "Q": 1, "MM": 2, "GGGG": 4, "ww": 2, "dd": 2, "HH": 2}
RANGES = {"yyyy": (1, 9999), "yy": (0, 99), "Q": (1, 4), "MM": (1, 12), "GGGG": (1, 9999), "ww": (1, 53), "dd": (1, 31), "HH": (0, 23)}
PERIODS = re.compile(r"(\d{4})(?:Q(\d)|W(\d\d)|(\d\d)(?:(\d\d)(\d\d)?)?)?")


class Code:
    def __init__(self, spec, tag="", keys=None):
        self.tag, self.keys = tag, keys or {}
        self.parts, self.fiscal, self.fiscal_end = [], 1, False
        self.check = self.uuid = None
        self.group, key_id = 0, ""
        for text, part in re.findall(r"((?:[^{}]|\{\{|\}\})+)|\{([^{}]+)\}", spec):
            if text:
                self.parts.append(("text", text.replace("{{", "{").replace("}}", "}")))
                continue
            name, *args = part.split(":")
            if name == "fiscal":
                self.fiscal, self.fiscal_end = int(args[0]), len(args) == 2
            elif name == "type":
                self.parts.append(("text", args[0] + "_"))
            elif name in ("id", "seq", "uuid"):
                key_id = self._number(name, args)
                self.parts.append(("number", None))
            elif name == "check":
                self.check = args[0] if args else default_check(len(self.chars))
                self.parts.append(("check", None))
            elif name == "key":
                self.parts.append(("key", None))
            elif name in WIDTHS:
                self.parts.append((name, None))
            elif name != "zone":
                raise ValueError(f"unknown part {{{part}}}")
        self.parts = [("text", key_id) if p == ("key", None) else p for p in self.parts]
        self.check_length = 2 if self.check == "mod97" else 1
        self.fixed = sum(
            len(text) if kind == "text" else self.check_length if kind == "check" else WIDTHS.get(kind, 0) for kind, text in self.parts
        )

    def _number(self, name, args):
        if name == "uuid":
            self.uuid = "base32" if args[:1] == ["base32"] else "hex"
            args = args[self.uuid == "base32" :]
            self.chars = ALPHABETS["crockford32-lower" if self.uuid == "base32" else "16"]
            mark = hashlib.sha256(("hapax uuid 1" + self.tag).encode()).digest()
            self.mark = int.from_bytes(mark[:8], "big") >> 5
            bands = [(0, 0, LIMIT)]
        else:
            width, args = args[0], args[1:]
            alphabet = "10"
            if args and (args[0] in ALPHABETS or args[0].startswith("=")):
                alphabet, args = args[0], args[1:]
            self.chars = ALPHABETS.get(alphabet) or alphabet[1:]
            size, w = len(self.chars), int(width.rstrip("+"))
            bands = [(w, 0, min(size**w, LIMIT))]
            while width.endswith("+") and bands[-1][2] < LIMIT:
                w, _, low = bands[-1]
                bands.append((w + 1, low, min(size ** (w + 1), LIMIT)))
        mixer, key_id = lambda n: Plain(), ""
        if args and not args[0].startswith("group="):
            kind, _, key_id = args[0].partition("=")
            args = args[1:]
            mixer = {
                "feistel": lambda n: Feistel(self.keys[key_id], self.tag, key_id, n),
                "multiply": Multiply,
                "reverse": Reverse,
            }[kind]
        if args:
            self.group = int(args[0][len("group=") :])
        self.bands = [(w, low, high, mixer(high - low)) for w, low, high in bands]
        return key_id

    def encode(self, number, period=""):
        for width, low, high, mixer in self.bands:
            if low <= number < high:
                break
        else:
            raise ValueError(f"number {number}: want 0 to {self.bands[-1][2] - 1}")
        shown = low + mixer.mix(number - low, _tweak(period))
        out, seen, fields = [], [], self._fields(period)
        for kind, text in self.parts:
            if kind == "text":
                out.append(text)
            elif kind == "number":
                out.append(self._show(width, shown, seen))
            elif kind == "check":
                out.append(self._sum(seen))
            else:
                digits = f"{fields[kind]:0{WIDTHS[kind]}d}"
                out.append(digits)
                seen.extend(map(int, digits))
        return "".join(out)

    def decode(self, text):
        for width, low, high, mixer in self.bands:
            if self.fixed + self._length(width) == len(text):
                break
        else:
            raise self._length_error(text)
        pos, at, seen, fields = 0, {}, [], {}
        for kind, want in self.parts:
            at[kind] = pos
            if kind == "text":
                for i, c in enumerate(want):
                    if text[pos] != c:
                        raise CodeError(pos, repr(want[i:]))
                    pos += 1
            elif kind == "number":
                end = pos + self._length(width)
                shown = self._read(text, pos, end, seen)
                pos = end
            elif kind == "check":
                for c in self._sum(seen):
                    if text[pos] != c:
                        raise CodeError(pos, "the check character of what comes before it", text[pos] in self.chars)
                    pos += 1
            else:
                for _ in range(WIDTHS[kind]):
                    if text[pos] not in ALPHABETS["10"]:
                        raise CodeError(pos, "a digit")
                    seen.append(int(text[pos]))
                    pos += 1
                fields[kind] = int(text[at[kind] : pos])
                least, most = RANGES[kind]
                if not least <= fields[kind] <= most:
                    raise CodeError(at[kind], f"{least} to {most}")
        period = self._period(fields, at) if fields else ""
        if not low <= shown < high:
            raise CodeError(at["number"], f"a number from {low} to {high - 1}")
        return low + mixer.unmix(shown - low, _tweak(period)), period

    def _length(self, width):
        if self.uuid:
            return 26 if self.uuid == "base32" else 36
        return width + ((width - 1) // self.group if self.group else 0)

    def _length_error(self, text):
        pos = 0
        for kind, want in self.parts:
            if kind != "text":
                break
            for c in want:
                if text[pos : pos + 1] != c:
                    return CodeError(pos, repr(want))
                pos += 1
        longest = self.fixed + self._length(self.bands[-1][0])
        return CodeError(min(len(text), longest), "a code's length")

    def _show(self, width, shown, seen):
        if self.uuid:
            return self._show_uuid(shown)
        digits = []
        for _ in range(width):
            shown, d = divmod(shown, len(self.chars))
            digits.append(d)
        digits.reverse()
        seen.extend(digits)
        text = "".join(self.chars[d] for d in digits)
        if not self.group:
            return text
        return "-".join(text[i : i + self.group] for i in range(0, width, self.group))

    def _read(self, text, pos, end, seen):
        if self.uuid:
            return self._read_uuid(text, pos, end)
        shown, start = 0, pos
        while pos < end:
            if self.group and (pos - start) % (self.group + 1) == self.group:
                if text[pos] != "-":
                    raise CodeError(pos, "a hyphen")
            else:
                v = self.chars.find(text[pos])
                if v < 0:
                    raise CodeError(pos, "a character of " + self.chars)
                seen.append(v)
                shown = shown * len(self.chars) + v
            pos += 1
        return shown

    def _show_uuid(self, shown):
        bits = shown >> 15 << 80 | 8 << 76 | (shown >> 3 & 0xFFF) << 64 | 2 << 62 | (shown & 7) << 59 | self.mark
        if self.uuid == "hex":
            h = f"{bits:032x}"
            return "-".join((h[:8], h[8:12], h[12:16], h[16:20], h[20:]))
        return "".join(self.chars[bits >> n & 31] for n in range(125, -1, -5))

    def _read_uuid(self, text, pos, end):
        bits, step = 0, 4 if self.uuid == "hex" else 5
        for i in range(pos, end):
            if self.uuid == "hex" and i - pos in (8, 13, 18, 23):
                if text[i] != "-":
                    raise CodeError(i, "a hyphen")
                continue
            v = self.chars.find(text[i])
            if v < 0:
                raise CodeError(i, "a character of " + self.chars)
            bits = bits << step | v
        shown = (bits >> 80 & (1 << 48) - 1) << 15 & LIMIT - 1 | (bits >> 64 & 0xFFF) << 3 | bits >> 59 & 7
        for i, c in enumerate(self._show_uuid(shown)):
            if text[pos + i] != c:
                raise CodeError(pos + i, f"the UUID of a number of this tag, which has {c} there")
        return shown

    def _sum(self, seen):
        size = len(self.chars)
        s = CHECKS[self.check](seen, size)
        if self.check_length == 2:
            return self.chars[s // size] + self.chars[s % size]
        return self.chars[s]

    # What the parts show of a period, and back.

    def _fields(self, period):
        if not period:
            return {}
        year, quarter, week, month, day, hour = PERIODS.fullmatch(period).groups()
        f = {"yyyy": int(year), "GGGG": int(year), "yy": int(year) - 2000}
        for name, value in ("Q", quarter), ("ww", week), ("MM", month), ("dd", day), ("HH", hour):
            if value:
                f[name] = int(value)
        if month:
            f["Q"] = self._quarter(f["MM"])
        return f

    def _quarter(self, month):
        return (month - self.fiscal) % 12 // 3 + 1

    def _period(self, f, at):
        year = f.get("yyyy") or f.get("GGGG") or 2000 + f.get("yy", 0)
        name = f"{year:04d}"
        if "ww" in f:
            last = datetime.date(year, 12, 28).isocalendar()[1]
            if f["ww"] > last:
                raise CodeError(at["ww"], f"a week up to {last}")
            return f"{name}W{f['ww']:02d}"
        if "MM" not in f:
            return f"{name}Q{f['Q']}" if "Q" in f else name
        for part in ("MM", "dd", "HH"):
            if part in f:
                name += f"{f[part]:02d}"
        if "dd" in f:
            of = year - self.fiscal_end + (f["MM"] < self.fiscal)
            last = 29 if f["MM"] == 2 and calendar.isleap(of) else (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[f["MM"] - 1]
            if f["dd"] > last:
                raise CodeError(at["dd"], f"a day up to {last}")
        if f.get("Q", self._quarter(f["MM"])) != self._quarter(f["MM"]):
            raise CodeError(at["Q"], "the quarter of the month")
        return name


def _tweak(period):
    return int("".join(c for c in period if c.isdigit()) or 0)
