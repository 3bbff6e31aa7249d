package define

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/codec"
)

// Keys are the keys that scramble codes, by their IDs: 16 to 64 random bytes each.
type Keys map[string][]byte

// Check judges the keys.
func (k Keys) Check() error {
	for id, key := range k {
		if len(key) < codec.MinKeyBytes || len(key) > codec.MaxKeyBytes {
			return outOfRange("code_keys."+id, fmt.Sprintf("(%d bytes)", len(key)), fmt.Sprintf("%d to %d random bytes", codec.MinKeyBytes, codec.MaxKeyBytes))
		}
		if len(id) < 1 || len(id) > codec.MaxKeyIDBytes || strings.ContainsFunc(id, func(r rune) bool { return !slices.Contains([]rune(keyIDChars), r) }) {
			return outOfRange("code_keys", id, fmt.Sprintf("key IDs of 1 to %d letters, digits, - and _", codec.MaxKeyIDBytes))
		}
	}
	return nil
}

const keyIDChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// A Code shows the numbers of a tag. Old codecs read what was shown before.
type Code struct {
	*codec.Codec

	old     []*codec.Codec
	missing error // why an old one cannot be read; nil: all can
}

// HasPeriod reports whether each period has a line of numbers of its own.
func (c *Code) HasPeriod() bool { return c != nil && c.Unit() != codec.None }

// codec returns the codec of a spec for a tag. A spec is new until it is stored.
func (k Keys) codec(tag, spec, zone string, fresh bool) (*codec.Codec, error) {
	c, err := codec.Parse(spec, codec.Options{Tag: tag, Keys: k, Zone: zone, New: fresh})
	if e, ok := errors.AsType[*codec.SpecError](err); ok {
		switch {
		case e.Option == "Zone":
			return nil, outOfRange("zone", zone, e.Want)
		case e.Pos < 0:
			return nil, outOfRange("code", spec, fmt.Sprintf("another %s: %s", e.Value, e.Want))
		}
		return nil, outOfRange("code", spec, fmt.Sprintf("%s (at position %d, %q)", e.Want, e.Pos+1, e.Value))
	}
	return c, err
}

// Code returns what shows a stored tag's numbers; nil if nothing does. An Extra that was not
// read is an error, and a codec in use whose key is not configured; an old one only cannot be
// read.
func (k Keys) Code(t Tag) (*Code, error) { return k.code(t, false) }

func (k Keys) code(t Tag, fresh bool) (*Code, error) {
	if t.Unread != nil {
		return nil, t.Unread
	}
	if t.Says.Spec == "" {
		return nil, nil //nolint:nilnil // a tag without a code is ordinary
	}
	c := &Code{}
	var err error
	if c.Codec, err = k.codec(t.Name, t.Says.Spec, t.Says.Zone, fresh); err != nil {
		return nil, err
	}
	for _, spec := range t.Says.Old {
		old, err := k.codec(t.Name, spec, "", false)
		if err != nil {
			c.missing = err
			continue
		}
		c.old = append(c.old, old)
	}
	return c, nil
}

// Canonical returns a tag's definition as it is stored: with the canonical spec
// of its code, which is checked against those that it had before.
func (k Keys) Canonical(t Tag) (Tag, error) {
	c, err := k.code(t, true)
	if err == nil {
		err = t.Says.checkFloors(c.HasPeriod())
	}
	switch {
	case err != nil || c == nil:
		return t, err
	// An old code that cannot be read cannot be held against the new one.
	case c.missing != nil:
		return t, c.missing
	case c.HasPeriod() && t.Kind == hapax.KindSnowflake:
		return t, outOfRange("code", c.String(), "one without a period for a snowflake tag, whose numbers hold the time")
	case c.HasPeriod() && len(t.Name) > maxPeriodTag:
		return t, outOfRange("tag", t.Name, fmt.Sprintf("up to %d bytes where numbers restart with each period", maxPeriodTag))
	}
	t.Says.Spec, t.Says.Zone, t.Says.Old = c.String(), "", nil
	for _, old := range c.old {
		if old.Unit() != c.Unit() {
			return t, outOfRange("code", c.String(), fmt.Sprintf("one whose numbers restart as those of %s do: unit %v", old, old.Unit()))
		}
		if !codec.Disjoint(c.Codec, old) {
			return t, outOfRange("code", c.String(), fmt.Sprintf("one of another shape than %s, which was used before: else a text could mean two numbers; change the width, the text around it, or show the {key}", old))
		}
		t.Says.Old = append(t.Says.Old, old.String())
	}
	if t.write(); len(t.Extra) > hapax.MaxExtraBytes {
		return t, outOfRange("code", c.String(), fmt.Sprintf("shorter: with the %d codes before it, it has to fit into %d bytes", len(t.Says.Old), hapax.MaxExtraBytes))
	}
	return t, nil
}

// Supersede returns a tag that is to say what is given. The code that it has is kept among
// the old ones.
func (k Keys) Supersede(t, given Tag) (Tag, error) {
	if err := cmp.Or(t.Unread, given.Unread); err != nil {
		return t, err
	}
	is := given.Says
	had, has := t.Says.Spec != "", is.Spec != ""
	if is.Source && t.IsOur {
		t.Says.Source = true
		t.write()
		if is.Source = false; is.isEmpty() { // nothing else is asked for
			return t, nil
		}
	}
	if len(is.Floors) > 0 {
		var err error
		if t, err = k.otherFloors(t, is); err != nil || !has {
			return t, err
		}
	}
	switch {
	case is.Strategy != "" && is.Strategy != t.Says.Strategy:
		return t, outOfRange("strategy", is.Strategy, fmt.Sprintf("%q, which cannot change", t.StrategyName()))
	case !has && had:
		return t, outOfRange("code", given.Extra, "another code: what was issued must stay readable, so a code can be replaced and not taken away")
	case !has && t.IsOur && t.Extra != "":
		return t, nil
	case !has:
		t.say(given)
		return t, nil
	}
	next, err := k.codec(t.Name, is.Spec, is.Zone, true)
	switch {
	case err != nil:
		return t, err
	// A spec that is given again, as by a script, must not go among the old ones.
	case had && k.Same(t.Name, is, t.Says):
		return t, nil
	case !had && next.Unit() != codec.None:
		return t, outOfRange("code", next.String(), "one without a period, or a new tag: this one's numbers have not restarted so far")
	case had:
		is.Old = append([]string{t.Says.Spec}, t.Says.Old...)
	}
	t.Says.Spec, t.Says.Zone, t.Says.Old = next.String(), "", is.Old
	t.write()
	return k.Canonical(t)
}

// Revive returns the definition of a tag to be created above a tombstone: given is what it
// was to say, of which a text may be that of a code in use.
func (k Keys) Revive(was, t Tag, given Extra) (Tag, error) {
	if was.Unread != nil {
		return t, was.Unread
	}
	if err := was.checkRevival(t); err != nil {
		return t, err
	}
	if t.IsOur {
		t.Says.Spec, t.Says.Zone = given.Spec, given.Zone
		t.write()
	}
	next, err := k.Supersede(was, t)
	t.say(next)
	return t, err
}

// Same reports whether a spec that is given, read as a new one or as one in use, is
// the stored one.
func (k Keys) Same(tag string, given, stored Extra) bool {
	in, err := k.codec(tag, stored.Spec, stored.Zone, false)
	if err != nil {
		return false
	}
	for _, fresh := range []bool{false, true} {
		if c, err := k.codec(tag, given.Spec, given.Zone, fresh); err == nil && c.String() == in.String() {
			return true
		}
	}
	return false
}

// Texts returns the texts of numbers of one period: with an error, of those before the first that has
// none.
func (c *Code) Texts(p codec.Period, ids []hapax.ID) ([]string, error) {
	texts := make([]string, len(ids))
	buf := make([]byte, 0, c.MaxLen())
	for i, id := range ids {
		var err error
		if buf, err = c.AppendPeriod(buf[:0], p, id); err != nil {
			return texts[:i], fmt.Errorf("%w: %d is more than %s can show, which is %d; give the tag a wider code", hapax.ErrLineExhausted, id, c, c.Max())
		}
		texts[i] = string(buf)
	}
	return texts, nil
}

// ParsedCode is what a text says.
type ParsedCode struct {
	Code   string     `json:"code"`
	ID     hapax.ID   `json:"id"`
	Period string     `json:"period,omitempty"`
	From   *time.Time `json:"from,omitempty"` // when the period begins
	Until  *time.Time `json:"until,omitempty"`
	Spec   string     `json:"spec"`          // which of the tag's codes it is
	Key    string     `json:"key,omitempty"` // the ID of the key that scrambles
}

// Parse takes the text of one of the tag's numbers apart. ErrInvalidID tells the position
// of the part that is wrong.
func (c *Code) Parse(text string) (ParsedCode, error) {
	var first error
	for _, one := range append([]*codec.Codec{c.Codec}, c.old...) {
		period, id, err := one.DecodePeriod(text)
		if err == nil {
			return parsed(one, text, period, id)
		}
		if first == nil {
			first = textError(one, text, err)
		}
	}
	if c.missing != nil {
		return ParsedCode{}, fmt.Errorf("%w; older codes of the tag were not tried: %w", first, c.missing)
	}
	return ParsedCode{}, first
}

func parsed(c *codec.Codec, text string, period codec.Period, id hapax.ID) (ParsedCode, error) {
	p := ParsedCode{Code: text, ID: id, Period: period.String(), Spec: c.String(), Key: c.KeyID()}
	if c.Unit() != codec.None {
		from, until, err := c.Bounds(period)
		if err != nil {
			return p, err
		}
		p.From, p.Until = &from, &until
	}
	return p, nil
}

// maxCodeText bounds a text in an error.
const maxCodeText = 256

// textError tells where a text stops being a code, and which one was probably
// meant.
func textError(c *codec.Codec, text string, err error) error {
	e, ok := errors.AsType[*codec.TextError](err)
	if !ok {
		return fmt.Errorf("%w: %w", hapax.ErrInvalidID, err)
	}
	found := "where the text ends"
	if e.Value != "" {
		found = fmt.Sprintf("where %q stands", e.Value)
	}
	allowed := fmt.Sprintf("%s at position %d, %s", e.Want, e.Pos+1, found)
	if len(text) <= maxCodeText {
		if meant, err := c.Normalize(text); err == nil && meant != text {
			// A guess is told only where it is one of the tag's texts.
			if _, _, err := c.DecodePeriod(meant); err == nil {
				allowed += "; perhaps " + meant + " is meant"
			}
		}
	}
	return &hapax.ValueError{Field: "code", Value: text, Allowed: allowed, Err: hapax.ErrInvalidID}
}
