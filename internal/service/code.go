package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/codec"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/driver"
)

// A tag's code and strategy, and the plugins that replace its numbers, stand in
// hapax.Tag.Extra, as JSON that begins with codePrefix. Any other Extra is carried and
// means nothing here.
const (
	codePrefix  = `{"code":`
	codeVersion = 1
)

// A codeRecord is what Tag.Extra holds of a tag. A node that does not know a field
// refuses the tag.
type codeRecord struct {
	Version int      `json:"code"`
	Spec    string   `json:"spec,omitempty"`
	Zone    string   `json:"zone,omitempty"` // only until the spec is canonical, and says it itself
	Old     []string `json:"old,omitempty"`  // canonical specs that still decode, the latest first

	Strategy string   `json:"strategy,omitempty"` // unless it is the tag's kind
	Replaced []string `json:"replaced,omitempty"` // strategy.Plugin.Frozen of the plugins that replace numbers

	Floors []FloorFrom `json:"floor_from,omitempty"`
}

// CodeExtra returns the Extra of a tag whose numbers are shown as a spec of
// package codec says; zone stands in for one that the spec does not name.
// CreateTag and UpdateTag store its canonical form. It is empty for no spec.
func CodeExtra(spec, zone string) string {
	if spec == "" {
		return ""
	}
	return codeRecord{Version: codeVersion, Spec: spec, Zone: zone}.extra()
}

// isEmpty reports whether there is nothing to store.
func (r codeRecord) isEmpty() bool {
	return r.Spec == "" && r.Strategy == "" && len(r.Replaced) == 0 && len(r.Floors) == 0
}

func (r codeRecord) extra() string {
	if r.isEmpty() {
		return ""
	}
	r.Version = codeVersion
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(r) // texts and numbers always can be
	return strings.TrimSuffix(b.String(), "\n")
}

// readExtra returns what a tag's Extra holds; false if that means nothing here.
func readExtra(extra string) (r codeRecord, ok bool, err error) {
	if !strings.HasPrefix(extra, codePrefix) {
		return r, false, nil
	}
	if len(extra) > hapax.MaxExtraBytes {
		return r, false, outOfRange("extra", fmt.Sprintf("(%d bytes)", len(extra)), fmt.Sprintf("up to %d bytes", hapax.MaxExtraBytes))
	}
	d := json.NewDecoder(strings.NewReader(extra))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.InputOffset() != int64(len(extra)) || r.Version != codeVersion || r.isEmpty() {
		return r, false, outOfRange("extra", extra, `a code of this version, such as {"code":1,"spec":"{id:6}"}`)
	}
	return r, true, nil
}

// CodeOf returns the spec of the tag's code, and those that it had before, the
// latest first; empty if it has none.
func CodeOf(t hapax.Tag) (spec string, old []string) {
	r, _, err := readExtra(t.Extra)
	if err != nil {
		return "", nil
	}
	return r.Spec, r.Old
}

// TagOf returns a tag as an operator sees it.
func TagOf(t hapax.Tag) api.Tag {
	v := api.Tag{Name: t.Name, Kind: t.Kind, Step: t.Step, MinStep: t.MinStep, MaxStep: t.MaxStep, Pool: t.Pool, Deleted: t.Deleted, Strategy: StrategyOf(t)}
	v.Code, v.Old = CodeOf(t)
	v.FloorFrom = FloorsOf(t)
	if t.Kind == hapax.KindSegment {
		v.Start, v.Mark = new(hapax.ID(t.Start)), new(hapax.ID(t.Mark))
	}
	if t.Delta > 1 {
		v.Delta, v.Rest = t.Delta, t.Remainder
	}
	return v
}

// A code shows the numbers of a tag. Old codecs read what was shown before.
type code struct {
	*codec.Codec
	old     []*codec.Codec
	missing error // why an old one cannot be read; nil: all can
}

// hasPeriod reports whether each period has a line of numbers of its own.
func (c *code) hasPeriod() bool { return c != nil && c.Unit() != codec.None }

// all returns the codecs, the one in use first.
func (c *code) all() []*codec.Codec { return append([]*codec.Codec{c.Codec}, c.old...) }

// codec returns the codec of a spec for a tag. A spec is new until it is stored.
func (o Options) codec(tag, spec, zone string, fresh bool) (*codec.Codec, error) {
	c, err := codec.Parse(spec, codec.Options{Tag: tag, Keys: o.CodeKeys, Zone: zone, New: fresh})
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

// code returns what shows a stored tag's numbers; nil if nothing does. A codec in use
// whose key is not configured is an error, an old one only cannot be read.
func (o Options) code(t hapax.Tag) (*code, error) { return o.codeOf(t, false) }

func (o Options) codeOf(t hapax.Tag, fresh bool) (*code, error) {
	r, _, err := readExtra(t.Extra)
	if err != nil || r.Spec == "" {
		return nil, err
	}
	c := &code{}
	if c.Codec, err = o.codec(t.Name, r.Spec, r.Zone, fresh); err != nil {
		return nil, err
	}
	for _, spec := range r.Old {
		old, err := o.codec(t.Name, spec, "", false)
		if err != nil {
			c.missing = err
			continue
		}
		c.old = append(c.old, old)
	}
	return c, nil
}

// canonical returns a tag's definition as it is stored: with the canonical spec
// of its code, which is checked against those that it had before.
func (o Options) canonical(t hapax.Tag) (hapax.Tag, error) {
	c, err := o.codeOf(t, true)
	if err == nil {
		var r codeRecord
		if r, _, err = readExtra(t.Extra); err == nil {
			err = r.checkFloors(c.hasPeriod())
		}
	}
	switch {
	case err != nil || c == nil:
		return t, err
	case c.missing != nil:
		return t, c.missing
	case c.hasPeriod() && t.Kind == hapax.KindSnowflake:
		return t, outOfRange("code", c.String(), "one without a period for a snowflake tag, whose numbers hold the time")
	case c.hasPeriod() && len(t.Name) > maxPeriodTag:
		return t, outOfRange("tag", t.Name, fmt.Sprintf("up to %d bytes where numbers restart with each period", maxPeriodTag))
	}
	r, _, err := readExtra(t.Extra)
	if err != nil {
		return t, err
	}
	r.Spec, r.Zone, r.Old = c.String(), "", nil
	for _, old := range c.old {
		if old.Unit() != c.Unit() {
			return t, outOfRange("code", c.String(), fmt.Sprintf("one whose numbers restart as those of %s do: unit %v", old, old.Unit()))
		}
		if !codec.Disjoint(c.Codec, old) {
			return t, outOfRange("code", c.String(), fmt.Sprintf("one of another shape than %s, which was used before: else a text could mean two numbers; change the width, the text around it, or show the {key}", old))
		}
		r.Old = append(r.Old, old.String())
	}
	if t.Extra = r.extra(); len(t.Extra) > hapax.MaxExtraBytes {
		return t, outOfRange("code", c.String(), fmt.Sprintf("shorter: with the %d codes before it, it has to fit into %d bytes", len(r.Old), hapax.MaxExtraBytes))
	}
	return t, nil
}

// supersede returns the Extra of a tag that is to have another one. The code that
// it has is kept among the old ones.
func (o Options) supersede(t hapax.Tag, extra string) (string, error) {
	was, ours, err := readExtra(t.Extra)
	if err != nil {
		return "", err
	}
	is, _, err := readExtra(extra)
	had, has := was.Spec != "", is.Spec != ""
	if err == nil && len(is.Floors) > 0 {
		if t.Extra, err = o.otherFloors(t, was, is.Floors); err != nil || !has {
			return t.Extra, err
		}
		if was, ours, err = readExtra(t.Extra); err != nil {
			return "", err
		}
	}
	switch {
	case err != nil:
		return "", err
	case is.Strategy != "" && is.Strategy != was.Strategy:
		return "", outOfRange("strategy", is.Strategy, fmt.Sprintf("%q, which cannot change", StrategyName(t)))
	case !has && had:
		return "", outOfRange("code", extra, "another code: what was issued must stay readable, so a code can be replaced and not taken away")
	case !has && ours:
		return t.Extra, nil
	case !has:
		return extra, nil
	}
	next, err := o.codec(t.Name, is.Spec, is.Zone, true)
	switch {
	case err != nil:
		return "", err
	case had && o.same(t.Name, is, was):
		return t.Extra, nil
	case !had && next.Unit() != codec.None:
		return "", outOfRange("code", next.String(), "one without a period, or a new tag: this one's numbers have not restarted so far")
	case had:
		is.Old = append([]string{was.Spec}, was.Old...)
	}
	was.Spec, was.Zone, was.Old = next.String(), "", is.Old
	t.Extra = was.extra()
	t, err = o.canonical(t)
	return t.Extra, err
}

// otherFloors returns the Extra of a tag that gets other columns, or none.
func (o Options) otherFloors(t hapax.Tag, was codeRecord, all []FloorFrom) (string, error) {
	if _, ours, _ := readExtra(t.Extra); !ours && t.Extra != "" {
		return "", outOfRange("extra", t.Extra, "none beside floor_from")
	}
	switch all[0].URL {
	case floorStated:
		return t.Extra, nil
	case floorNone:
		all = nil
	}
	was.Floors = all
	c, err := o.code(t)
	if err == nil {
		err = was.checkFloors(c.hasPeriod())
	}
	extra := was.extra()
	if err == nil && len(extra) > hapax.MaxExtraBytes {
		err = outOfRange("floor_from", fmt.Sprintf("(%d bytes)", len(extra)), fmt.Sprintf("shorter: with the tag's code it has to fit into %d bytes", hapax.MaxExtraBytes))
	}
	return extra, err
}

// same reports whether a spec that is given, read as a new one or as one in use, is
// that of the record.
func (o Options) same(tag string, given, stored codeRecord) bool {
	in, err := o.codec(tag, stored.Spec, stored.Zone, false)
	if err != nil {
		return false
	}
	for _, fresh := range []bool{false, true} {
		if c, err := o.codec(tag, given.Spec, given.Zone, fresh); err == nil && c.String() == in.String() {
			return true
		}
	}
	return false
}

// settleCode returns the definition of a tag to be created as it is stored.
func (s *Service) settleCode(ctx context.Context, t hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	if isPeriodLine(t.Name) {
		return t, &hapax.ValueError{Field: "tag", Value: t.Name, Allowed: "another name: those of this form are the lines of tags whose numbers restart with each period", Err: hapax.ErrInvalidTag}
	}
	given := t.Extra
	t, err := s.opts.canonical(t)
	if err == nil {
		t, err = s.freeze(t)
	}
	if err != nil || mode != hapax.CreateExplicit {
		return t, err
	}
	was, err := admin(ctx, s, func(ctx context.Context) (hapax.Tag, error) { return s.store.Tag(ctx, t.Name) })
	switch {
	case errors.Is(err, hapax.ErrTagNotFound):
		return t, nil
	case err != nil || !was.Deleted:
		return t, err // CreateTag says that it exists
	}
	if err := sameFrozen(was, t); err != nil {
		return t, err
	}
	is, ours, err := readExtra(t.Extra)
	if asGiven, _, _ := readExtra(given); err == nil && ours { // the same text may be that of a code in use
		is.Spec, is.Zone = asGiven.Spec, asGiven.Zone
		t.Extra = is.extra()
	}
	t.Extra, err = s.opts.supersede(was, t.Extra)
	return t, err
}

// updateCode is UpdateTag where the Extra changes.
func (s *Service) updateCode(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	select {
	case s.recoding <- struct{}{}: // one at a time, so that none is lost among the old ones
		defer func() { <-s.recoding }()
	case <-ctx.Done():
		return hapax.Tag{}, &hapax.WaitError{Cause: hapax.ErrRefillPending, Context: context.Cause(ctx)}
	}
	t, err := s.store.Tag(ctx, name)
	if err != nil {
		return t, err
	}
	extra, err := s.opts.supersede(t, *u.Extra)
	if err != nil {
		return t, err
	}
	least, note, err := s.readFloors(ctx, t, *u.Extra)
	if err != nil {
		return t, err
	}
	if least > 0 && (u.Floor == nil || *u.Floor < least) {
		u.Floor = &least
	}
	u.Extra = &extra
	was := t.Mark
	if t, err = s.store.UpdateTag(ctx, name, u); err != nil {
		return t, err
	}
	if least > was {
		s.wasBehind("tag "+name, name, was, least)
	}
	return t, note(ctx)
}

// Issued are numbers with the texts that show them.
type Issued struct {
	Period string // the period of all of them; empty where numbers never restart
	IDs    []hapax.ID
	Codes  []string
}

// NextCodes issues n numbers, 1 to Options.MaxCount, of a tag that has a code,
// with their texts. Errors, beyond those of NextN: ErrInvalidArgument for a tag
// without a code, ErrLineExhausted where the code cannot show the number.
func (s *Service) NextCodes(ctx context.Context, tag string, n int) (Issued, error) {
	if n < 1 || n > s.opts.MaxCount {
		return Issued{}, outOfRange("count", n, fmt.Sprintf("1 to %d", s.opts.MaxCount))
	}
	caller := auth.FromContext(ctx)
	if err := s.charge(ctx, tag, int64(n)); err != nil {
		return Issued{}, err
	}
	taken := 0
	res := Issued{IDs: make([]hapax.ID, n)}
	var c *code
	var period codec.Period
	take := func(ctx context.Context, dst []hapax.ID) (n int, err error) {
		defer func() { taken += n }()
		err = s.issue(ctx, tag, func(ctx context.Context, l *line) (err error) {
			if c = l.code; c == nil {
				return errNoCode(tag)
			}
			if l.periods != nil {
				period, n, err = l.periods.take(ctx, dst)
				return err
			}
			n, err = l.issuer.NextN(ctx, dst)
			return err
		})
		return n, err
	}
	err := s.through(ctx, tag, func(ctx context.Context, l *line) error {
		if l.code == nil { // before the plugins are asked
			return errNoCode(tag)
		}
		_, err := l.plugged.Around(ctx, res.IDs, take)
		return err
	})
	caller.ReturnNumbers(int64(n - taken))
	if err != nil {
		return Issued{}, err // what was issued before is a gap
	}
	res.Period = period.String()
	res.Codes, err = c.texts(period, res.IDs)
	return res, err
}

// texts returns the texts of numbers of one period.
func (c *code) texts(p codec.Period, ids []hapax.ID) ([]string, error) {
	texts := make([]string, len(ids))
	buf := make([]byte, 0, c.MaxLen())
	for i, id := range ids {
		var err error
		if buf, err = c.AppendPeriod(buf[:0], p, id); err != nil {
			return nil, fmt.Errorf("%w: %d is more than %s can show, which is %d; give the tag a wider code", hapax.ErrLineExhausted, id, c, c.Max())
		}
		texts[i] = string(buf)
	}
	return texts, nil
}

func errNoCode(tag string) error {
	return outOfRange("tag", tag, "a tag that has a code; hapax tags set TAG --code SPEC gives it one")
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

// ParseCode takes the text of one of the tag's numbers apart. It says nothing
// about whether the number was issued. ErrInvalidID tells the position of the part that is
// wrong; ErrTagNotFound, ErrInvalidArgument for a tag without a code.
func (s *Service) ParseCode(ctx context.Context, tag, text string) (ParsedCode, error) {
	c, err := s.codeOf(ctx, tag)
	if err != nil {
		return ParsedCode{}, err
	}
	var first error
	for _, one := range c.all() {
		period, id, err := one.DecodePeriod(text)
		if err == nil {
			return newParsedCode(one, text, period, id)
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

// codeOf returns the tag's code, which it must have.
func (s *Service) codeOf(ctx context.Context, tag string) (*code, error) {
	var c *code
	if l := s.tags.find(tag); l != nil {
		c = l.code
	} else {
		t, err := s.Tag(ctx, tag)
		if err == nil {
			c, err = s.opts.code(t)
		}
		if err != nil {
			return nil, err
		}
	}
	if c == nil {
		return nil, errNoCode(tag)
	}
	return c, nil
}

func newParsedCode(c *codec.Codec, text string, period codec.Period, id hapax.ID) (ParsedCode, error) {
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
			if _, _, err := c.DecodePeriod(meant); err == nil {
				allowed += "; perhaps " + meant + " is meant"
			}
		}
	}
	return &hapax.ValueError{Field: "code", Value: text, Allowed: allowed, Err: hapax.ErrInvalidID}
}

// checkKeys checks the keys of codes.
func (o Options) checkKeys() error {
	for id, key := range o.CodeKeys {
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
