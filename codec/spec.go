package codec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Options are what a spec does not say itself.
type Options struct {
	// Tag is the tag whose numbers are shown, up to MaxTagBytes. Scrambled
	// numbers and UUIDs depend on it and need it.
	Tag string
	// Keys holds the keys that scramble numbers, by their IDs: 16 to 64 bytes
	// each, as random as can be, of which the last is no CR or LF: that is the end
	// of a line in the file that the key was read from, and servers leave it out.
	// Parse copies what it needs.
	Keys map[string][]byte
	// New says that no code was made by the spec yet. {check} alone then means gf over
	// 16, 32 and 64 characters, where that covers all digits. In specs that are in use
	// it stays iso7064 over 16, and gf over 32 and 64. What String returns is read the
	// same with and without New.
	New bool
	// Key is the ID of the key that a spec means by "feistel" alone. By default
	// it is the only one in Keys.
	Key string
	// Zone is the time zone of periods, an IANA name, where the spec says none.
	Zone string
}

// Limits of specs and options.
const (
	MaxSpecBytes  = 256
	MaxTagBytes   = 128
	MaxKeyIDBytes = 32
	MinKeyBytes   = 16
	MaxKeyBytes   = 64
	maxZoneBytes  = 64
)

// Parse returns the codec that a spec describes; the package's documentation has
// the grammar. Errors are a [SpecError], which matches [ErrInvalidSpec].
//
// Time zones come from the system's database, from the file that the environment
// variable ZONEINFO names, or from package time/tzdata if the program imports it.
func Parse(spec string, opts Options) (*Codec, error) {
	p := parser{spec: spec, opts: opts, codec: &Codec{tag: opts.Tag, cal: calendar{fiscal: 1}}, once: map[string]bool{}}
	if len(spec) > MaxSpecBytes {
		return nil, p.errorf(0, spec[:16]+"…", "at most %d bytes", MaxSpecBytes)
	}
	if len(opts.Tag) > MaxTagBytes {
		return nil, optionError("Tag", "Tag", fmt.Sprintf("at most %d bytes", MaxTagBytes))
	}
	for _, step := range []func() error{p.split, p.finish} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return p.codec, nil
}

type parser struct {
	spec  string
	opts  Options
	codec *Codec
	once  map[string]bool // names of parts seen
	text  string          // literal text seen, not yet a part

	zone      string
	zonePos   int
	fiscal    string // canonical, with its braces
	fiscalPos int
	numberPos int
	number    string // name of the number part
	check     item   // the check part, resolved when the alphabet is known
	showsKey  int    // position of {key} plus one
}

// An item is a stretch of a spec between braces and colons.
type item struct {
	text string
	pos  int
}

func (p *parser) errorf(pos int, value, want string, args ...any) error {
	return &SpecError{Pos: pos, Value: value, Want: fmt.Sprintf(want, args...)}
}

func optionError(option, value, want string) error {
	return &SpecError{Pos: -1, Value: value, Want: want, Option: option}
}

// split takes the spec apart.
func (p *parser) split() error {
	for pos := 0; pos < len(p.spec); {
		switch rest := p.spec[pos:]; {
		case strings.HasPrefix(rest, "{{"), strings.HasPrefix(rest, "}}"):
			p.text += rest[:1]
			pos += 2
		case rest[0] == '}':
			return p.errorf(pos, "}", "}} for a brace in the text")
		case rest[0] == '{':
			end := strings.IndexAny(rest[1:], "{}") + 1
			if end == 0 || rest[end] == '{' {
				return p.errorf(pos, rest, "a closing brace, or {{ for a brace in the text")
			}
			if err := p.part(pos+1, rest[1:end]); err != nil {
				return err
			}
			pos += end + 1
		default:
			r, size := utf8.DecodeRuneInString(rest)
			if r == utf8.RuneError && size == 1 || unicode.IsControl(r) {
				return p.errorf(pos, rest[:size], "valid UTF-8 without control characters")
			}
			p.text += rest[:size]
			pos += size
		}
	}
	p.flush()
	return nil
}

// escape writes braces as a spec has them.
var escape = strings.NewReplacer("{", "{{", "}", "}}")

// flush makes a part of the literal text before the next one.
func (p *parser) flush() {
	if p.text != "" {
		p.add(part{spec: escape.Replace(p.text), text: p.text})
		p.text = ""
	}
}

func (p *parser) add(part part) { p.codec.parts = append(p.codec.parts, part) }

const partIn = "{id:…}, {seq:…}, {uuid}, {check}, {type:…}, {key}, {zone:…}, {fiscal:…}, {yyyy}, {yy}, {Q}, {MM}, {dd}, {HH}, {GGGG} or {ww}"

// part takes what stands between braces.
func (p *parser) part(pos int, text string) error {
	var items []item
	for s := range strings.SplitSeq(text, ":") {
		items = append(items, item{s, pos})
		pos += len(s) + 1
	}
	name, args := items[0], items[1:]
	if p.once[name.text] {
		return p.errorf(name.pos, name.text, "each part once")
	}
	p.once[name.text] = true
	if i := findPeriodPart(name.text); i >= 0 {
		if len(args) > 0 {
			return p.errorf(args[0].pos, args[0].text, "nothing after {%s", name.text)
		}
		if p.once["check"] {
			return p.errorf(name.pos, name.text, "periods and numbers before {check}, which covers them")
		}
		p.flush()
		pp := &periodParts[i]
		p.add(part{spec: "{" + pp.name + "}", period: pp, index: i})
		return nil
	}
	switch name.text {
	case "id", "seq", "uuid":
		return p.numberPart(name, args)
	case "check":
		return p.checkPart(name, args)
	case "type":
		return p.typePart(name, args)
	case "key":
		if len(args) > 0 {
			return p.errorf(args[0].pos, args[0].text, "nothing after {key")
		}
		p.flush()
		p.showsKey = name.pos + 1
		p.add(part{spec: "{key}"})
		return nil
	case "zone":
		if len(args) != 1 || !isZoneName(args[0].text) {
			return p.errorf(name.pos, text, "zone and an IANA name, such as {zone:Europe/Berlin} or {zone:UTC}")
		}
		p.zone, p.zonePos = args[0].text, args[0].pos
		return nil
	case "fiscal":
		return p.fiscalPart(name, args, text)
	}
	return p.errorf(name.pos, name.text, "one of %s", partIn)
}

func (p *parser) checkPart(name item, args []item) error {
	if p.number == "" {
		return p.errorf(name.pos, name.text, "a number before {check}, which covers it")
	}
	if len(args) > 1 {
		return p.errorf(args[1].pos, args[1].text, "at most one name after {check")
	}
	p.check = name
	if len(args) == 1 {
		p.check = args[0]
	}
	p.flush()
	p.add(part{check: true})
	return nil
}

// typePart takes a TypeID's prefix.
func (p *parser) typePart(name item, args []item) error {
	if len(p.codec.parts) > 0 || p.text != "" {
		return p.errorf(name.pos, name.text, "{type:…} before all else that is shown")
	}
	if len(args) != 1 || !isTypeName(args[0].text) {
		return p.errorf(name.pos, name.text, "type and 1 to 63 of a-z and _, the first and the last a letter")
	}
	p.add(part{spec: "{type:" + args[0].text + "}", text: args[0].text + "_"})
	return nil
}

func (p *parser) fiscalPart(name item, args []item, text string) error {
	const want = "fiscal and the month in which years begin, 02 to 12, and :end if they are named after the one in which they end, such as {fiscal:04} or {fiscal:10:end}"
	if len(args) == 0 || len(args) > 2 || len(args[0].text) != 2 || len(args) == 2 && args[1].text != "end" {
		return p.errorf(name.pos, text, "%s", want)
	}
	month, err := strconv.ParseUint(args[0].text, 10, 8)
	if err != nil || month < 2 || month > 12 {
		return p.errorf(args[0].pos, args[0].text, "%s", want)
	}
	p.fiscal, p.fiscalPos = "{"+text+"}", name.pos
	p.codec.cal.fiscal, p.codec.cal.fiscalEnd = int(month), len(args) == 2
	return nil
}

// numberPart takes {id:…}, {seq:…} or {uuid…}.
func (p *parser) numberPart(name item, args []item) error {
	if p.number != "" {
		return p.errorf(name.pos, name.text, "one number in all; there is {%s} before", p.number)
	}
	p.flush()
	p.number, p.numberPos = name.text, name.pos
	n := &p.codec.number
	spec := "{" + name.text
	if name.text == "uuid" {
		if len(p.opts.Tag) == 0 {
			return optionError("Tag", "Tag", "a tag, on which UUIDs depend")
		}
		base32 := len(args) > 0 && args[0].text == "base32"
		if base32 {
			args, spec = args[1:], spec+":base32"
		}
		n.uuid = newUUIDForm(p.opts.Tag, base32)
		n.alphabet = n.uuid.alphabet()
		n.bands = []band{{n: maxNumbers}}
	} else {
		shape, rest, err := p.shape(name, args)
		if err != nil {
			return err
		}
		args, spec = rest, spec+shape
	}
	if len(args) > 0 && !strings.HasPrefix(args[0].text, groupMark) {
		mixer, err := p.mixer(args[0])
		if err != nil {
			return err
		}
		args, spec = args[1:], spec+":"+mixer
	}
	if len(args) > 0 && n.uuid == nil {
		group, err := p.group(args[0])
		if err != nil {
			return err
		}
		args, spec = args[1:], spec+":"+group
	}
	if len(args) > 0 {
		return p.errorf(args[0].pos, args[0].text, "%s", map[bool]string{true: uuidIn, false: numberIn}[n.uuid != nil])
	}
	p.add(part{spec: spec + "}", number: true})
	return nil
}

const (
	groupMark = "group="
	feistelIs = "feistel"
	mixerIn   = "feistel, feistel=KEYID, reverse or multiply"
	numberIn  = "in this order a width, an alphabet, a scrambler and a group, such as {id:8:crockford32:feistel:group=4}"
	uuidIn    = "base32 or nothing, then a scrambler or nothing, such as {uuid:base32:multiply}"
)

// shape takes the width and the alphabet.
func (p *parser) shape(name item, args []item) (spec string, rest []item, err error) {
	if len(args) == 0 {
		return "", nil, p.errorf(name.pos, name.text, "a width, such as {%[1]s:6}, or {%[1]s:6+} for 6 digits and more where needed", name.text)
	}
	width, rest := args[0], args[1:]
	a := decimal
	if len(rest) > 0 && !isMixer(rest[0].text) && !strings.HasPrefix(rest[0].text, groupMark) {
		var ok bool
		if a, ok = parseAlphabet(rest[0].text); !ok {
			return "", nil, p.errorf(rest[0].pos, rest[0].text, "an alphabet (%s) or a scrambler (%s)", alphabetIn, mixerIn)
		}
		rest = rest[1:]
	}
	text, widen := strings.CutSuffix(width.text, "+")
	w, err := strconv.ParseUint(text, 10, 8)
	// A width has one spelling, because the canonical spec repeats it.
	if most := maxWidth(a.size()); err != nil || w < 1 || int(w) > most || text[0] == '0' || text[0] == '+' {
		return "", nil, p.errorf(width.pos, width.text, "a width of 1 to %d digits in this alphabet, and + if longer ones are allowed", most)
	}
	n := &p.codec.number
	n.alphabet, n.bands = a, newBands(a.size(), int(w), widen)
	spec = ":" + width.text
	if a != decimal {
		spec += ":" + a.name
	}
	return spec, rest, nil
}

func isMixer(s string) bool {
	name, _, _ := strings.Cut(s, "=")
	return slices.Contains([]string{feistelIs, "reverse", "multiply"}, name)
}

// mixer gives every band its mixer and returns the canonical form.
func (p *parser) mixer(it item) (string, error) {
	n := &p.codec.number
	name, keyID, named := strings.Cut(it.text, "=")
	switch {
	case name == feistelIs:
		return p.feistel(it, keyID, named)
	case it.text == "reverse":
		for i := range n.bands {
			size := n.bands[i].n
			if size&(size-1) != 0 {
				return "", p.errorf(it.pos, it.text, "a fixed width of an alphabet of 2, 4, 8, 16, 32 or 64 characters, or the full width; multiply and feistel go with any")
			}
			k := 0
			for size>>k > 1 {
				k++
			}
			n.bands[i].mixer = reversal{k}
		}
	case it.text == "multiply":
		for i := range n.bands {
			n.bands[i].mixer = newMultiplication(n.bands[i].n)
		}
	default:
		return "", p.errorf(it.pos, it.text, "%s", mixerIn)
	}
	return it.text, nil
}

// keyIDs lists the keys that there are.
func (p *parser) keyIDs() string {
	if len(p.opts.Keys) == 0 {
		return "none is"
	}
	return strings.Join(slices.Sorted(maps.Keys(p.opts.Keys)), ", ")
}

func (p *parser) feistel(it item, keyID string, named bool) (string, error) {
	if len(p.opts.Tag) == 0 {
		return "", optionError("Tag", "Tag", "a tag, on which scrambled numbers depend")
	}
	if !named {
		if keyID = p.opts.Key; keyID == "" {
			switch len(p.opts.Keys) {
			case 0:
				return "", p.errorf(it.pos, it.text, "a key to scramble with, and none is given: name one under code_keys in the server's configuration, or in Options.Keys")
			case 1:
			default:
				return "", p.errorf(it.pos, it.text, "feistel=KEYID, because there are several keys: %s", p.keyIDs())
			}
			for keyID = range p.opts.Keys { // takes the only one
			}
		}
	}
	if !isKeyID(keyID) {
		return "", p.errorf(it.pos, it.text, "a key's ID of 1 to %d letters, digits, - and _", MaxKeyIDBytes)
	}
	key, ok := p.opts.Keys[keyID]
	if !ok {
		return "", p.errorf(it.pos, it.text, "the ID of a key that is given (%s); %q is missing", p.keyIDs(), keyID)
	}
	if len(key) < MinKeyBytes || len(key) > MaxKeyBytes {
		return "", optionError("Keys", fmt.Sprintf("Keys[%q] of %d bytes", keyID, len(key)), fmt.Sprintf("%d to %d bytes", MinKeyBytes, MaxKeyBytes))
	}
	if last := key[len(key)-1]; last == '\r' || last == '\n' {
		return "", optionError("Keys", fmt.Sprintf("Keys[%q] that ends in a line break", keyID), "the key without the line break at the end of its file, as servers take it")
	}
	n := &p.codec.number
	n.keyID = keyID
	for i := range n.bands {
		n.bands[i].mixer = newFeistel(key, p.opts.Tag, keyID, n.bands[i].n)
	}
	return feistelIs + "=" + keyID, nil
}

func (p *parser) group(it item) (string, error) {
	text, ok := strings.CutPrefix(it.text, groupMark)
	if !ok {
		return "", p.errorf(it.pos, it.text, "%s", numberIn)
	}
	n := &p.codec.number
	g, err := strconv.ParseUint(text, 10, 8)
	if most := maxWidth(n.alphabet.size()); err != nil || g < 1 || int(g) > most || strconv.FormatUint(g, 10) != text {
		return "", p.errorf(it.pos, it.text, "group= and 1 to %d digits", most)
	}
	if n.alphabet.has(separator) {
		return "", p.errorf(it.pos, it.text, "no group, or an alphabet without hyphen")
	}
	n.group = int(g)
	return it.text, nil
}

// finish checks the parts against each other and writes the canonical spec.
func (p *parser) finish() error {
	if p.number == "" {
		return p.errorf(len(p.spec), "", "a number: {id:…}, {uuid}, or {seq:…} with a period")
	}
	if err := p.setUnit(); err != nil {
		return err
	}
	if err := p.setCheck(); err != nil {
		return err
	}
	c := p.codec
	if p.showsKey > 0 && c.number.keyID == "" {
		return p.errorf(p.showsKey-1, "key", "a number scrambled by feistel, or no {key}")
	}
	var spec strings.Builder
	if c.cal.unit != None {
		spec.WriteString("{zone:" + p.zone + "}" + p.fiscal)
	}
	for i := range c.parts {
		part := &c.parts[i]
		switch {
		case part.spec == "{key}":
			part.text = c.number.keyID
		case part.check:
			part.spec = "{check}"
			if size := c.number.alphabet.size(); isField(size) || c.check.name != defaultCheck(size) { // see Options.New
				part.spec = "{check:" + c.check.name + "}"
			}
			c.fixed += c.check.chars
		case part.period != nil:
			c.fixed += part.period.width
		}
		c.fixed += len(part.text)
		spec.WriteString(part.spec)
	}
	c.spec = spec.String()
	if len(c.spec) > MaxSpecBytes {
		return p.errorf(0, p.spec, "at most %d bytes in its canonical form", MaxSpecBytes)
	}
	return nil
}

// setUnit finds the unit of the period, and that the parts shown tell it apart
// from all others.
func (p *parser) setUnit() error {
	cal := &p.codec.cal
	for _, part := range p.codec.parts {
		if part.period != nil {
			cal.unit = max(cal.unit, part.period.unit)
		}
	}
	has := p.once
	want := ""
	switch {
	case has["GGGG"] != has["ww"]:
		want = "{GGGG} and {ww} together"
	case has["ww"] && (has["yyyy"] || has["yy"] || has["Q"] || has["MM"] || has["dd"] || has["HH"] || p.fiscal != ""):
		want = "no other part of a period beside {GGGG} and {ww}"
	case has["yyyy"] && has["yy"]:
		want = "either {yyyy} or {yy}"
	case cal.unit >= Year && cal.unit != Week && !has["yyyy"] && !has["yy"]:
		want = "{yyyy} or {yy}, without which names come again"
	case cal.unit >= Day && !has["MM"]:
		want = "{MM}, without which names come again"
	case cal.unit == Hour && !has["dd"]:
		want = "{dd}, without which names come again"
	case cal.unit != None && p.number != "seq":
		want = "{seq:…} for the number, which restarts with each period"
	case cal.unit == None && p.number == "seq":
		want = "{id:…} for a number that never restarts, or a period such as {yyyy}{MM}{dd}"
	case cal.unit == None && (p.zone != "" || p.fiscal != ""):
		want = "a period such as {yyyy}{MM}{dd}, or neither zone nor fiscal year"
	}
	if want != "" {
		return p.errorf(p.numberPos, p.number, "%s", want)
	}
	if cal.unit == None {
		return nil
	}
	zone, err := p.loadZone()
	if err != nil {
		return err
	}
	cal.zone = zone
	return nil
}

// loadZone finds the zone that the spec names, or else the options.
func (p *parser) loadZone() (*time.Location, error) {
	wrong := func(want string) error { return p.errorf(p.zonePos, p.zone, "%s", want) }
	if p.zone == "" {
		p.zone = p.opts.Zone
		wrong = func(want string) error { return optionError("Zone", fmt.Sprintf("Zone %q", p.zone), want) }
	}
	if !isZoneName(p.zone) {
		return nil, wrong("the IANA name of the time zone in which periods begin, such as Europe/Berlin or UTC")
	}
	zone, err := time.LoadLocation(p.zone)
	if err == nil {
		return zone, nil
	}
	// A zone that every database has tells a wrong name from a missing database.
	if _, err := time.LoadLocation("Europe/Berlin"); err == nil {
		return nil, wrong("the IANA name of a time zone, such as Europe/Berlin or UTC; there is none with this name")
	}
	return nil, wrong(fmt.Sprintf("a time zone that is installed; install the system's (tzdata), name a file of them in ZONEINFO, or import time/tzdata (%v)", err))
}

func (p *parser) setCheck() error {
	if !p.once["check"] {
		return nil
	}
	n := &p.codec.number
	size := n.alphabet.size()
	name := p.check.text
	if name == "check" {
		name = ""
	}
	if n.uuid != nil {
		return p.errorf(p.check.pos, p.check.text, "no check, for which a UUID has no room")
	}
	// The longest number decides: with a plus, a check has to hold for codes that come years later.
	covered := n.bands[len(n.bands)-1].width
	for _, part := range p.codec.parts {
		if part.period != nil {
			covered += part.period.width
			if size < len(digits) {
				return p.errorf(p.check.pos, p.check.text, "an alphabet of 10 or more characters, which a check over the period's digits needs")
			}
		}
	}
	if name == "" && p.opts.New && isField(size) && covered <= fieldCovers(size) {
		name = checkField
	}
	check, ok := findCheck(name, size)
	if !ok || p.check.text == "" {
		return p.errorf(p.check.pos, p.check.text, "%s; this one has %d", checkIn, size)
	}
	if check.most != nil && covered > check.most(size) {
		return p.errorf(p.check.pos, p.check.text, "another check or fewer digits; gf over %d characters covers %d digits, not %d", size, check.most(size), covered)
	}
	p.codec.check = check
	return nil
}

func isTypeName(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c != '_' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= 63
}

func isKeyID(s string) bool {
	return len(s) >= 1 && len(s) <= MaxKeyIDBytes && onlyNameChars(s, "-_")
}

// isZoneName refuses Local, which is another zone on another machine.
func isZoneName(s string) bool {
	return len(s) >= 1 && len(s) <= maxZoneBytes && s != "Local" && onlyNameChars(s, "-_+/")
}

func onlyNameChars(s, more string) bool {
	for i := range len(s) {
		if c := s[i]; !isLetter(c) && !isDigit(c) && strings.IndexByte(more, c) < 0 {
			return false
		}
	}
	return true
}
