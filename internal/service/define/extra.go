// Package define says what a tag is beyond what stores know of it: its code, its strategy,
// the plugins that replace its numbers, and the columns that they are written to. All that
// stands in the tag's Extra, which is read and written here alone. It asks no store.
package define

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/strategy"
)

// What an Extra says is JSON that begins with the prefix. Any other Extra is carried and
// means nothing here.
const (
	prefix  = `{"code":`
	version = 1
)

// An Extra is what hapax.Tag.Extra says. A node that does not know a field refuses the tag.
type Extra struct {
	Version int      `json:"code"`
	Spec    string   `json:"spec,omitempty"` // of the tag's code
	Zone    string   `json:"zone,omitempty"` // only until the spec is canonical, and says it itself
	Old     []string `json:"old,omitempty"`  // canonical specs that still decode, the latest first

	Strategy string   `json:"strategy,omitempty"` // unless it is the tag's kind
	Replaced []string `json:"replaced,omitempty"` // strategy.Plugin.Frozen of the plugins that replace numbers

	Floors []api.FloorFrom `json:"floor_from,omitempty"`

	// Source is set where a sequence, counter or row of another system went over to the tag: it
	// may issue again, for this store or another, while the tag is deleted.
	Source bool `json:"source,omitempty"`
}

// isEmpty reports whether there is nothing to store.
func (x Extra) isEmpty() bool {
	return x.Spec == "" && x.Strategy == "" && len(x.Replaced) == 0 && len(x.Floors) == 0 && !x.Source
}

// String returns the text that is stored.
func (x Extra) String() string {
	if x.isEmpty() {
		return ""
	}
	x.Version = version
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(x) // texts and numbers always can be
	return strings.TrimSuffix(b.String(), "\n")
}

// A Tag is a tag, and what its Extra says.
type Tag struct {
	hapax.Tag

	Says   Extra
	IsOur  bool  // the Extra means something here, or is empty
	Unread error // ErrInvalidArgument for an Extra that another version has written; of that, the tag says nothing
}

// Read returns a tag with its Extra read.
func Read(t hapax.Tag) Tag {
	says, err := parse(t.Extra)
	return Tag{t, says, t.Extra == "" || err == nil && !says.isEmpty(), err}
}

// Now returns the tag as it is now, which is read anew only where its Extra is another.
func (t Tag) Now(now hapax.Tag) Tag {
	if t.Extra == "" || t.Extra != now.Extra {
		return Read(now)
	}
	t.Tag = now
	return t
}

// parse returns what an Extra says; nothing for one that means nothing here.
func parse(extra string) (x Extra, err error) {
	if !strings.HasPrefix(extra, prefix) {
		return x, nil
	}
	if len(extra) > hapax.MaxExtraBytes {
		return x, outOfRange("extra", fmt.Sprintf("(%d bytes)", len(extra)), fmt.Sprintf("up to %d bytes", hapax.MaxExtraBytes))
	}
	d := json.NewDecoder(strings.NewReader(extra))
	d.DisallowUnknownFields()
	// Text behind the JSON would be lost with the next change.
	if err := d.Decode(&x); err != nil || d.InputOffset() != int64(len(extra)) || x.Version != version || x.isEmpty() {
		return Extra{}, outOfRange("extra", extra, `a code of this version, such as {"code":1,"spec":"{id:6}"}`)
	}
	return x, nil
}

// write has the tag say what it says now.
func (t *Tag) write() { t.Extra, t.IsOur = t.Says.String(), true }

// say has the tag say what another one says.
func (t *Tag) say(as Tag) {
	t.Extra, t.Says, t.IsOur, t.Unread = as.Extra, as.Says, as.IsOur, as.Unread
}

// CodeExtra returns the Extra of a tag whose numbers are shown as a spec of
// package codec says; zone stands in for one that the spec does not name. A service
// stores its canonical form. It is empty for no spec.
func CodeExtra(spec, zone string) string {
	if spec == "" {
		return ""
	}
	return Extra{Spec: spec, Zone: zone}.String()
}

// StrategyName returns the name of the tag's strategy.
func (t Tag) StrategyName() string {
	return cmp.Or(t.Says.Strategy, string(t.Kind), string(hapax.KindSegment))
}

// Maker returns what makes other numbers of those that the tag is granted, as its
// definition says; "" for nothing.
func (t Tag) Maker() string {
	if t.Says.Strategy == "" {
		return ""
	}
	return fmt.Sprintf("the strategy %q", t.Says.Strategy)
}

// ByPlugins is the maker of numbers that plugins replace.
const ByPlugins = "a plugin"

// MakerBy returns Tag.Maker; it is [ByPlugins] where those of the registry replace a tag's
// numbers.
func MakerBy(plugins *strategy.Registry) func(Tag) string {
	return func(t Tag) string {
		if maker := t.Maker(); maker != "" {
			return maker
		}
		if tag, _, ok := CutLine(t.Name); ok {
			t.Name = tag
		}
		if len(plugins.Frozen(t.StrategyName(), t.Name)) > 0 {
			return ByPlugins
		}
		return ""
	}
}

// Shown returns a tag as an operator sees it.
func Shown(t hapax.Tag) api.Tag {
	says := Read(t).Says
	v := api.Tag{
		Name: t.Name, Kind: t.Kind, Step: t.Step, MinStep: t.MinStep, MaxStep: t.MaxStep, Pool: t.Pool, Deleted: t.Deleted,
		Strategy: says.Strategy, Code: says.Spec, Old: says.Old, FloorFrom: says.Floors,
	}
	if t.Kind == hapax.KindSegment {
		v.Start, v.Mark = new(hapax.ID(t.Start)), new(hapax.ID(t.Mark))
	}
	if t.Delta > 1 {
		v.Delta, v.Rest = t.Delta, t.Remainder
	}
	return v
}

// WithStrategy returns a definition whose strategy has that name: as its kind, or in
// its Extra.
func WithStrategy(t hapax.Tag, name string) (hapax.Tag, error) {
	switch kind := hapax.Kind(name); kind {
	case "":
		return t, nil
	case hapax.KindSegment, hapax.KindSnowflake:
		if t.Kind != "" && t.Kind != kind {
			return t, outOfRange("kind", string(t.Kind), fmt.Sprintf("%s, or none, beside strategy %s", kind, name))
		}
		t.Kind = kind
		return t, nil
	}
	if t.Kind != "" && t.Kind != hapax.KindSegment {
		return t, outOfRange("kind", string(t.Kind), "no kind where strategy names a custom one")
	}
	d := Read(t)
	switch {
	case d.Unread != nil:
		return t, d.Unread
	case !d.IsOur:
		return t, outOfRange("extra", t.Extra, "none beside a strategy")
	}
	d.Kind, d.Says.Strategy = hapax.KindSegment, name
	d.write()
	return d.Tag, nil
}

// WithSource returns a tag's Extra that says that a source of numbers went over to the tag.
// UpdateTag keeps the rest.
func WithSource(extra string) (string, error) {
	t := Read(hapax.Tag{Extra: extra})
	if !t.IsOur {
		return extra, t.Unread
	}
	t.Says.Source = true
	return t.Says.String(), nil
}

// Frozen returns a definition whose numbers are replaced by these plugins from the first
// one on.
func (t Tag) Frozen(replaced []string) (Tag, error) {
	t.Says.Replaced = replaced
	switch {
	case t.IsOur:
		t.write()
	case len(replaced) > 0:
		return t, outOfRange("extra", t.Extra, "none where a plugin replaces the tag's numbers")
	}
	if len(t.Extra) > hapax.MaxExtraBytes {
		return t, outOfRange("extra", fmt.Sprintf("(%d bytes)", len(t.Extra)), fmt.Sprintf("up to %d bytes, with strategy and plugins", hapax.MaxExtraBytes))
	}
	return t, nil
}

// CheckFrozen refuses a tag whose numbers would be replaced otherwise than they were
// from the first one on.
func (t Tag) CheckFrozen(here []string) error {
	if slices.Equal(t.Says.Replaced, here) {
		return nil
	}
	return fmt.Errorf("%w: %q was created with %s, and this node has %s; configure the plugins as they were, or take another tag: else a number could come twice",
		strategy.ErrPluginMismatch, t.Name, replacedBy(t.Says.Replaced), replacedBy(here))
}

// checkRevival refuses to revive a tag whose numbers would be replaced otherwise.
func (t Tag) checkRevival(is Tag) error {
	switch {
	case t.Says.Source && !is.Says.Source:
		return fmt.Errorf("%w: the deleted tag %q is that of a sequence, counter or row of another system, which may issue its numbers, for this store or another: hapax import --apply opens both where that is safe; if it is shut for this store, or gone for good, give hapax tags create --of-source",
			hapax.ErrInvalidArgument, is.Name)
	case t.Says.Strategy != is.Says.Strategy:
		return outOfRange("strategy", is.StrategyName(), t.StrategyName()+", which the tag had before it was deleted")
	case !slices.Equal(t.Says.Replaced, is.Says.Replaced):
		return fmt.Errorf("%w: %q had %s before it was deleted, and would have %s", strategy.ErrPluginMismatch, is.Name, replacedBy(t.Says.Replaced), replacedBy(is.Says.Replaced))
	}
	return nil
}

func replacedBy(frozen []string) string {
	if len(frozen) == 0 {
		return "numbers that no plugin replaces"
	}
	return fmt.Sprintf("numbers replaced by %q", frozen)
}

func outOfRange(field string, value any, allowed string) error {
	return &hapax.ValueError{Field: field, Value: value, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}
