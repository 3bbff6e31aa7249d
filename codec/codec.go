package codec

import (
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
)

// A Codec shows numbers as texts and reads them back. It never changes and may
// be used by any number of goroutines. Parse makes one.
type Codec struct {
	spec   string
	tag    string
	parts  []part
	number number
	cal    calendar
	check  *check
	fixed  int // length of everything but the number
}

// A part of a code: a text, something of the period, the number or the check.
type part struct {
	spec   string // its canonical form in the spec
	text   string // the same in every code
	period *periodPart
	index  int // of the period part
	number bool
	check  bool
}

// String returns the canonical spec, from which [Parse] makes the same codec. It
// names the key's ID and the time zone, and holds no secret.
func (c *Codec) String() string { return c.spec }

// Unit returns the unit of the code's periods, [None] if numbers never restart.
func (c *Codec) Unit() Unit { return c.cal.unit }

// KeyID returns the ID of the key that scrambles the numbers, empty if none does.
func (c *Codec) KeyID() string { return c.number.keyID }

// Max returns the largest number that the code can show; the least is 0.
func (c *Codec) Max() hapax.ID {
	last := c.number.bands[len(c.number.bands)-1]
	return hapax.ID(last.lo + (last.n - 1))
}

// MaxLen returns the length of the longest text in bytes.
func (c *Codec) MaxLen() int {
	return c.fixed + c.number.length(&c.number.bands[len(c.number.bands)-1])
}

// Period returns the period in which an instant lies: the line of which a number
// is to be taken at that time. It is the zero Period if the code has none. Errors
// match [ErrPeriod].
func (c *Codec) Period(t time.Time) (Period, error) {
	p, err := c.cal.at(t)
	if err == nil {
		err = c.checkPeriod(p)
	}
	if err != nil {
		return Period{}, err
	}
	return p, nil
}

// ParsePeriod returns the period whose String is the text. Errors match
// [ErrPeriod].
func (c *Codec) ParsePeriod(text string) (Period, error) {
	form, ok := map[Unit]string{None: "", Year: "yyyy", Quarter: "yyyyQ1", Month: "yyyymm", Week: "yyyyW01", Day: "yyyymmdd", Hour: "yyyymmddhh"}[c.cal.unit]
	p := Period{unit: c.cal.unit}
	if ok && len(text) == len(form) {
		n := 0
		for i := range len(text) {
			if isDigit(text[i]) {
				n = n*10 + int(text[i]-'0')
			}
		}
		switch c.cal.unit {
		case Hour:
			p.hour, n = int8(n%100), n/100
			fallthrough
		case Day:
			p.day, n = int8(n%100), n/100
			fallthrough
		case Month, Week:
			p.part, n = int8(n%100), n/100
		case Quarter:
			p.part, n = int8(n%10), n/10
		default:
		}
		p.year = int16(n)
	}
	// Written back, whatever the loop above has let through shows: letters for digits, or an hour in the place
	// of a day.
	if p.String() != text {
		return Period{}, fmt.Errorf("%w: %q: want the form %s of a %v", ErrPeriod, text, form, c.cal.unit)
	}
	if err := c.checkPeriod(p); err != nil {
		return Period{}, err
	}
	return p, nil
}

// Bounds returns the first instant of a period in the code's zone, and the first
// instant from which on its name never comes again. Where clocks skip the whole
// period, both are the same. Errors match [ErrPeriod].
func (c *Codec) Bounds(p Period) (start, end time.Time, err error) {
	if err := c.checkPeriod(p); err != nil {
		return time.Time{}, time.Time{}, err
	}
	if c.cal.unit == None {
		return time.Time{}, time.Time{}, fmt.Errorf("%w: the code has none", ErrPeriod)
	}
	start, end = c.cal.bounds(p)
	return start, end, nil
}

// checkPeriod reports whether the code can show a period.
func (c *Codec) checkPeriod(p Period) error {
	if p.unit != c.cal.unit {
		return fmt.Errorf("%w: one of unit %v: want %v", ErrPeriod, p.unit, c.cal.unit)
	}
	for i := range c.parts {
		part := &c.parts[i]
		if pp := part.period; pp != nil {
			if v := pp.value(&c.cal, p); v < pp.min || v > pp.max {
				if pp.name == "yy" {
					return fmt.Errorf("%w: year %d: {yy} shows the years %d to %d", ErrPeriod, p.year, century, century+pp.max)
				}
				return fmt.Errorf("%w: %s of %s: want %d to %d", ErrPeriod, pp.name, p, pp.min, pp.max)
			}
		}
	}
	if want := c.cal.refuse(p); want != "" {
		return fmt.Errorf("%w: %s: want %s", ErrPeriod, p, want)
	}
	return nil
}

// Append appends the text of a number to dst. Errors match [ErrRange], or
// [ErrPeriod] if the code shows a period; dst is then returned as it is.
func (c *Codec) Append(dst []byte, id hapax.ID) ([]byte, error) {
	return c.AppendPeriod(dst, Period{}, id)
}

// maxDigits is more than a code can have digits: 63 of the number, 11 of the
// period and 2 of the check.
const maxDigits = 80

// AppendPeriod appends the text of a number of a period to dst. No two pairs of
// a period and a number have the same text. Errors match [ErrRange] or [ErrPeriod];
// dst is then returned as it is.
func (c *Codec) AppendPeriod(dst []byte, p Period, id hapax.ID) ([]byte, error) {
	if err := c.checkPeriod(p); err != nil {
		return dst, err
	}
	b := c.number.bandOf(id)
	if b == nil {
		return dst, fmt.Errorf("%w: %d: want 0 to %d, which is what %s can show", ErrRange, id, c.Max(), c.spec)
	}
	// The period is the tweak, so that the same number looks different in each where it is scrambled.
	shown := b.shown(uint64(id), p.tweak())
	var store [maxDigits]uint8
	seen := store[:0] // the values that the check covers
	for i := range c.parts {
		switch part := &c.parts[i]; {
		case part.period != nil:
			dst, seen = appendDigits(dst, seen, part.period.value(&c.cal, p), part.period.width)
		case part.check:
			dst = c.appendCheck(dst, seen)
		case part.number:
			dst, seen = c.number.append(dst, seen, b, shown)
		default:
			dst = append(dst, part.text...)
		}
	}
	return dst, nil
}

// appendDigits appends a decimal number of a fixed width, and its values to seen.
func appendDigits(dst []byte, seen []uint8, v, width int) (text []byte, values []uint8) {
	scale := 1
	for range width - 1 {
		scale *= 10
	}
	for ; scale > 0; scale /= 10 {
		d := uint8(v / scale % 10)
		dst, seen = append(dst, '0'+d), append(seen, d)
	}
	return dst, seen
}

func (c *Codec) appendCheck(dst []byte, seen []uint8) []byte {
	chars := c.number.alphabet.chars
	sum := c.check.sum(seen, len(chars))
	if c.check.chars == 2 {
		dst = append(dst, chars[sum/len(chars)])
	}
	return append(dst, chars[sum%len(chars)])
}

// Decode returns the number whose text this is. It accepts what Append returns
// and nothing else: each number has one text, and each text one number at most.
// Errors are a [TextError], which matches [ErrInvalidText], or match [ErrPeriod] if
// the code shows a period: DecodePeriod returns it as well.
func (c *Codec) Decode(text string) (hapax.ID, error) {
	if c.cal.unit != None {
		return 0, fmt.Errorf("%w: the number of %s means nothing without it", ErrPeriod, c.spec)
	}
	_, id, err := c.DecodePeriod(text)
	return id, err
}

// DecodePeriod returns the period and the number whose text this is. Errors are
// a [TextError].
func (c *Codec) DecodePeriod(text string) (Period, hapax.ID, error) {
	// The length first: it tells the band, and keeps every offset below within the text.
	b := c.number.bandOfLength(len(text) - c.fixed)
	if b == nil {
		return Period{}, 0, c.lengthError(text)
	}
	var (
		store [maxDigits]uint8
		seen  = store[:0]
		parts shownPeriod
		at    shownPeriod // offsets in the text
		shown uint64
		num   int // offset of the number
		pos   int
		err   error
	)
	for i := range parts {
		parts[i] = -1
	}
	for i := range c.parts {
		switch part := &c.parts[i]; {
		case part.period != nil:
			at[part.index] = pos
			if parts[part.index], seen, err = readDigits(text, pos, part.period, seen); err != nil {
				return Period{}, 0, err
			}
			pos += part.period.width
		case part.check:
			if err = c.readCheck(text, pos, seen); err != nil {
				return Period{}, 0, err
			}
			pos += c.check.chars
		case part.number:
			num = pos
			if shown, seen, err = c.number.read(text, pos, b, seen); err != nil {
				return Period{}, 0, err
			}
			pos += c.number.length(b)
		default:
			for j := range len(part.text) {
				if text[pos] != part.text[j] {
					return Period{}, 0, textError(text, pos, fmt.Sprintf("%q", part.text[j:]))
				}
				pos++
			}
		}
	}
	var p Period
	if c.cal.unit != None {
		var fault int
		var want string
		if p, fault, want = c.cal.assemble(&parts); fault >= 0 {
			return Period{}, 0, textError(text, at[fault], want)
		}
	}
	// A number of a shorter band, filled up with zeros, has its text there: it must not have a second one here.
	if shown < b.lo || shown-b.lo >= b.n {
		first, _ := c.number.append(nil, nil, b, b.lo)
		last, _ := c.number.append(nil, nil, b, b.lo+(b.n-1))
		return Period{}, 0, textError(text, num, fmt.Sprintf("%s to %s in a number of this length", first, last))
	}
	return p, hapax.ID(b.id(shown, p.tweak())), nil
}

// lengthError finds where a text with a length that no code has stops being a code.
func (c *Codec) lengthError(text string) error {
	pos := 0
	for _, part := range c.parts {
		if part.text == "" {
			break
		}
		for i := range len(part.text) {
			if pos >= len(text) || text[pos] != part.text[i] {
				return textError(text, pos, fmt.Sprintf("%q", part.text[i:]))
			}
			pos++
		}
	}
	least, most := c.fixed+c.number.length(&c.number.bands[0]), c.MaxLen()
	want := fmt.Sprintf("%d characters in all, not %d", least, len(text))
	if most != least {
		want = fmt.Sprintf("%d to %d characters in all, not %d", least, most, len(text))
	}
	return textError(text, min(len(text), most), want)
}

// readDigits reads what a part shows of the period.
func readDigits(text string, pos int, part *periodPart, seen []uint8) (int, []uint8, error) {
	v := 0
	for i := range part.width {
		d := text[pos+i]
		if !isDigit(d) {
			return 0, nil, textError(text, pos+i, "a digit of {"+part.name+"}")
		}
		v = v*10 + int(d-'0')
		seen = append(seen, d-'0')
	}
	if v < part.min || v > part.max {
		return 0, nil, textError(text, pos, fmt.Sprintf("{%s} from %0*d to %0*d", part.name, part.width, part.min, part.width, part.max))
	}
	return v, seen, nil
}

func (c *Codec) readCheck(text string, pos int, seen []uint8) error {
	var room [2]byte
	for i, want := range c.appendCheck(room[:0], seen) {
		if text[pos+i] == want {
			continue
		}
		err := &TextError{Pos: pos + i, Value: text[pos+i : pos+i+1], Want: "the check character of what comes before it; something is mistyped", Check: true}
		// A character that no code can have is no slip of the check.
		if a := c.number.alphabet; !a.has(text[pos+i]) {
			err.Want, err.Check = "a character of "+a.chars, false
		}
		return err
	}
	return nil
}
