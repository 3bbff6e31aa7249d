package driver

import (
	"cmp"
	"fmt"

	"github.com/hapax-id/hapax"
)

// MaxToken is the highest fencing token of a tag; no life of a store gets there.
const MaxToken = 1 << 62

// A Tag is a tag as a store keeps it: with the hash of the key by which the last segment may be
// handed back.
type Tag struct {
	hapax.Tag

	// KeyHash is the hash of the key of the last allocation; empty before the
	// first and after a hand-back.
	KeyHash string

	// Run is how far below the mark that allocation began, together with the
	// adjoining ones before it that the same caller holds.
	Run int64
}

// Redefined returns t with another definition, which does not change its token. Where that raises the mark, the
// numbers between were granted to nobody: the last allocation does not adjoin
// what comes next any more, and cannot be handed back.
func (t Tag) Redefined(def hapax.Tag) Tag {
	if def.Mark != t.Mark {
		t.KeyHash, t.Run = "", 0
	}
	def.Token = t.Token
	t.Tag = def
	return t
}

// Floored returns t with nothing left that would bring its mark below a floor: the mark is at
// or above it already, and a grantee that holds numbers from below it up to the mark cannot hand
// them back any more. The token grows then, so that a store without the floor is behind.
func (t Tag) Floored(floor int64) Tag {
	if t.Run > 0 && t.Mark-t.Run < floor {
		t.KeyHash, t.Run = "", 0
		t.Token = min(t.Token+1, MaxToken)
	}
	return t
}

// Update returns t changed by u, or an error that names the first bad field. A floor needs
// [Tag.Floored] besides.
func Update(t hapax.Tag, u TagUpdate) (hapax.Tag, error) {
	if t.Deleted {
		return t, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, t.Name)
	}
	if u.Extra != nil {
		// What is stored already may be this very change, whose answer was lost.
		if u.ExtraWas != nil && t.Extra != *u.ExtraWas && t.Extra != *u.Extra {
			return t, fmt.Errorf("%w: %q", ErrExtraChanged, t.Name)
		}
		t.Extra = *u.Extra
	}
	if t.Kind != hapax.KindSegment {
		if u.Step != nil || u.MinStep != nil || u.MaxStep != nil || u.Floor != nil {
			return t, fmt.Errorf("%w: %q is a %s tag and has no step or floor", hapax.ErrKindMismatch, t.Name, t.Kind)
		}
		return t.WithDefaults()
	}
	for _, f := range []struct{ to, from *int64 }{{&t.Step, u.Step}, {&t.MinStep, u.MinStep}, {&t.MaxStep, u.MaxStep}} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	if u.Step != nil { // bounds that were not given follow the step
		if u.MinStep == nil {
			t.MinStep = min(t.MinStep, t.Step)
		}
		if u.MaxStep == nil {
			t.MaxStep = max(t.MaxStep, t.Step)
		}
	}
	for _, f := range []struct {
		name string
		v    int64
	}{{"step", t.Step}, {"min_step", t.MinStep}, {"max_step", t.MaxStep}} {
		if f.v == 0 { // zero is "unset" at creation, and an error here
			return t, &hapax.ValueError{Field: f.name, Value: f.v, Allowed: fmt.Sprintf("1 to %d", int64(hapax.MaxStep)), Err: hapax.ErrInvalidArgument}
		}
	}
	if u.Floor != nil {
		if *u.Floor < 1 || *u.Floor >= hapax.MaxMark {
			return t, &hapax.ValueError{Field: "floor", Value: *u.Floor, Allowed: fmt.Sprintf("1 to %d", int64(hapax.MaxMark-1)), Err: hapax.ErrInvalidArgument}
		}
		t.Mark = max(t.Mark, *u.Floor)
	}
	return t.WithDefaults()
}

// CheckAllocate refuses what Allocate of a SegmentStore is not to be asked.
func CheckAllocate(tag string, n int64) error {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return err
	}
	return checkCount(n)
}

func checkCount(n int64) error {
	if n < 0 || n > hapax.MaxStep {
		return &hapax.ValueError{Field: "n", Value: n, Allowed: fmt.Sprintf("0 to %d", int64(hapax.MaxStep)), Err: hapax.ErrInvalidArgument}
	}
	return nil
}

// Width returns by how much n numbers of a tag (0: its own step) raise its mark,
// or an error if the tag grants none or n is out of range. It does not look at
// the mark.
func Width(t hapax.Tag, n int64) (int64, error) {
	switch {
	case t.Deleted:
		return 0, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, t.Name)
	case t.Kind != hapax.KindSegment:
		return 0, fmt.Errorf("%w: %q is a %s tag", hapax.ErrKindMismatch, t.Name, t.Kind)
	}
	if err := checkCount(n); err != nil {
		return 0, err
	}
	return cmp.Or(n, t.Step) * t.Delta, nil // at most 2^60
}

// Advance returns the allocation of n numbers (0: the tag's step) and the tag
// after it. last is the key of the caller's last allocation, if it has one.
func Advance(t Tag, n int64, last hapax.GrantKey) (hapax.Allocation, Tag, error) {
	width, err := Width(t.Tag, n)
	if err != nil {
		return hapax.Allocation{}, t, err
	}
	if t.Mark > hapax.MaxMark-width {
		return hapax.Allocation{}, t, Exhausted(t.Tag, width)
	}
	// Numbers below were granted to others, or cannot be handed back any more: the run begins here.
	if !holds(last, t.KeyHash) {
		t.Run = 0
	}
	g := hapax.Grant{Lo: t.Mark, Hi: t.Mark + width}
	t.Mark, t.Run = g.Hi, t.Run+width
	a := hapax.Allocation{Grant: g, Tag: t.Tag, From: g.Hi - t.Run}
	a.Key, t.KeyHash = NewKey()
	return a, t, nil
}

// Exhausted returns the error for a tag whose line is shorter than width.
func Exhausted(t hapax.Tag, width int64) error {
	return fmt.Errorf("%w: tag %q has %d numbers left, %d were asked for",
		hapax.ErrLineExhausted, t.Name, max(0, hapax.MaxMark-t.Mark)/max(1, t.Delta), width/max(1, t.Delta))
}

// HandBack returns the tag after the hand-back of the numbers from next on in a,
// or ErrLeaseLost if it must not be handed back any more. No mark goes back where the token
// cannot grow.
func HandBack(t Tag, a hapax.Allocation, next int64) (Tag, error) {
	if err := CheckHandBack(a, next); err != nil {
		return t, err
	}
	switch {
	case t.Deleted:
		return t, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, t.Name)
	case !holds(a.Key, t.KeyHash) || t.Mark != a.Grant.Hi || t.Token != a.Tag.Token || t.Token >= MaxToken || next < t.Mark-t.Run:
		return t, NotHeld(t.Name)
	}
	// Without a key, so that the same call repeated is refused even where the mark comes by here once more.
	t.Mark, t.Run, t.KeyHash = next, 0, ""
	t.Token++
	return t, nil
}

// Heal returns the tag after [Healing.HealTag]: old is what is stored, without a
// name where nothing is. Nothing that was granted before can be handed back.
func Heal(old Tag, def hapax.Tag) (Tag, error) {
	def, err := def.WithDefaults()
	switch {
	case err != nil:
		return old, err
	case def.Token < 0 || def.Token >= MaxToken:
		return old, &hapax.ValueError{Field: "token", Value: def.Token, Allowed: fmt.Sprintf("0 to %d", int64(MaxToken-1)), Err: hapax.ErrInvalidArgument}
	case def.Mark > hapax.MaxMark:
		return old, &hapax.ValueError{Field: "mark", Value: def.Mark, Allowed: fmt.Sprintf("at most %d", int64(hapax.MaxMark)), Err: hapax.ErrInvalidArgument}
	case old.Name == "":
		old = Tag{Tag: def}
	case old.Kind != def.Kind || old.Pool != def.Pool:
		return old, fmt.Errorf("%w: %q is a %s, and was a %s", hapax.ErrKindMismatch, old.Name, kindInWords(old.Tag), kindInWords(def))
	case old.Delta != def.Delta || old.Remainder != def.Remainder: // another region may issue those that it has now
		return old, fmt.Errorf("%w: %q has delta %d and remainder %d, and had delta %d and remainder %d", hapax.ErrKindMismatch, old.Name, old.Delta, old.Remainder, def.Delta, def.Remainder)
	}
	// Above the token of either side, so that every pair that was known before is older.
	old.Mark, old.Token = max(old.Mark, def.Mark), min(max(old.Token, def.Token)+1, MaxToken)
	old.KeyHash, old.Run = "", 0
	return old, nil
}

// CheckHandBack judges the arguments of a hand-back without looking at the tag.
func CheckHandBack(a hapax.Allocation, next int64) error {
	if err := hapax.ValidateName("tag", a.Tag.Name); err != nil {
		return err
	}
	if next < 0 || next > a.Grant.Hi {
		return &hapax.ValueError{Field: "next", Value: next, Allowed: fmt.Sprintf("0 to %d, the end of the segment", a.Grant.Hi), Err: hapax.ErrInvalidArgument}
	}
	if a.Key == "" {
		return NotHeld(a.Tag.Name)
	}
	return nil
}

// NotHeld returns the error for a segment that the caller cannot hand back.
func NotHeld(tag string) error {
	return fmt.Errorf("%w: tag %q has moved on since the segment was granted, or the key is not the segment's", hapax.ErrLeaseLost, tag)
}

// Create returns the tag that results from creating def, whose Token counts with CreateFromToken
// alone, where old stands; that has no name where nothing does.
func Create(old Tag, def hapax.Tag, mode hapax.CreateMode) (Tag, error) {
	floor := def.Mark
	def.Deleted = mode == hapax.CreateTombstone
	switch {
	case old.Name != "":
		var err error
		if def, err = Revive(old.Tag, def, mode); err != nil {
			return old, err
		}
	case mode == hapax.CreateFromToken:
		return old, notFound(def.Name)
	}
	next := old.Redefined(def)
	if mode == hapax.CreateTombstone { // what was granted before cannot be handed back once it is revived
		next.KeyHash, next.Run = "", 0
		next.Token = min(next.Token+1, MaxToken)
		return next, nil
	}
	// Who revives a tag with a start says that numbers below it may be used.
	return next.Floored(floor), nil
}

// Revive returns the tag that results from creating def where old stands:
// ErrTagExists if old is alive, ErrTagDeleted if it is a tombstone and mode is
// CreateFirstUse, ErrLeaseLost if mode is CreateFromToken and its token is not
// def's, and otherwise def resuming above old's mark. A line that goes on from
// there keeps the lower start: numbers from there on were issued. The other one is a floor, for
// which it needs [Tag.Floored] besides.
func Revive(old, def hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	switch {
	case !old.Deleted:
		return old, fmt.Errorf("%w: %q", hapax.ErrTagExists, old.Name)
	case mode == hapax.CreateFirstUse:
		return old, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, old.Name)
	case mode == hapax.CreateFromToken && old.Token != def.Token:
		return old, fmt.Errorf("%w: the tombstone of tag %q has the token %d, and had %d when it was read", hapax.ErrLeaseLost, old.Name, old.Token, def.Token)
	case old.Kind != def.Kind || old.Pool != def.Pool:
		return old, fmt.Errorf("%w: %q was a %s", hapax.ErrKindMismatch, old.Name, kindInWords(old))
	case old.Delta != def.Delta || old.Remainder != def.Remainder:
		return old, fmt.Errorf("%w: %q had delta %d and remainder %d", hapax.ErrKindMismatch, old.Name, old.Delta, old.Remainder)
	}
	if def.Mark <= old.Mark {
		def.Start = min(def.Start, old.Start)
	}
	def.Mark, def.Token = max(def.Mark, old.Mark), old.Token
	return def, nil
}

// kindInWords names the kind and, where there is one, the pool.
func kindInWords(t hapax.Tag) string {
	if t.Kind == hapax.KindSegment {
		return "segment tag"
	}
	return fmt.Sprintf("%s tag of pool %q", t.Kind, t.Pool)
}

// Delete returns the tombstone that deleting a tag leaves.
func Delete(t hapax.Tag) (hapax.Tag, error) {
	if t.Deleted {
		return t, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, t.Name)
	}
	t.Deleted = true
	return t, nil
}
