package driver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
)

// A Retirement says that a store was copied elsewhere, for good, and where. It stands in the fence's
// row, so that whatever looks for a fence in the step that it makes has no part of it done.
type Retirement struct {
	Copy  string    `json:"copy"`  // random; the store that goes on has a row named by it, see RowCopied
	Store string    `json:"store"` // the identity, which the copy has as well
	To    string    `json:"to"`    // the URL of the copy, without secrets; empty where only its row's name is known
	At    time.Time `json:"at"`
	By    string    `json:"by"` // the machine

	Former []string `json:"former,omitempty"` // copies that were begun before, and given up
	Whole  bool     `json:"whole,omitempty"`  // all rows are in the copy, which may be in use since
}

// fenceOfRetired is the fence's row of a store that is retired.
type fenceOfRetired struct {
	Retired *Retirement `json:"retired"`
}

// Encode returns the fence's row of the store.
func (r Retirement) Encode() []byte { return EncodeRow(fenceOfRetired{&r}) }

// Place tells where the store goes on.
func (r Retirement) Place() string {
	return cmp.Or(r.To, "the URL of the copy that the other nodes use")
}

// Err returns the refusal of the store, a *[RetiredError].
func (r Retirement) Err() error { return &RetiredError{r} }

// A RetiredError is the refusal of a store that was copied elsewhere.
type RetiredError struct{ Retirement }

func (r *RetiredError) Error() string {
	if r.To == "" {
		return fmt.Sprintf("%v: store %s was copied elsewhere: set store to %s", hapax.ErrStoreRetired, r.Store, r.Place())
	}
	finish := ""
	if !r.Whole { // or it was made by a version that does not say so
		finish = ", and if nothing can be granted from it yet, finish the copy first: hapax store copy FROM " + r.To
	}
	return fmt.Sprintf("%v: store %s was copied to %s at %s, by %s: set store to that URL%s", hapax.ErrStoreRetired, r.Store, r.To, r.At.UTC().Format(time.RFC3339), r.By, finish)
}

// Unwrap returns hapax.ErrStoreRetired.
func (*RetiredError) Unwrap() error { return hapax.ErrStoreRetired }

// RetirementIn returns the retirement that a fence's row holds; nil: none.
func RetirementIn(fence []byte) *Retirement {
	if !bytes.Contains(fence, []byte(`"retired"`)) {
		return nil
	}
	var said fenceOfRetired
	if json.Unmarshal(fence, &said) != nil {
		return nil
	}
	return said.Retired
}

// RowCopied returns the name of the row of [TableGuard] by which a store is known to be the one
// that goes on after a copy.
func RowCopied(number string) string { return "copied/" + number }

// Quieting is implemented by stores in which a step that has begun may be done although a fence was
// acknowledged since: its condition is judged by a state from before.
type Quieting interface {
	// Quiet returns when every step that had begun before it has ended.
	Quiet(ctx context.Context) error
}

// maxFences is how often a fence may change while a row is changed.
const maxFences = 100

// stepBesides makes changes under no heartbeat. Those of lines are on condition that no retirement
// stands: the copy was read after it, and would lack the change. Other fences keep only guarded calls
// from lines, since healing changes them too.
func (b *Base) stepBesides(ctx context.Context, changes []Change) (Result, error) {
	step := Step{Each: changes}
	if slices.ContainsFunc(changes, func(c Change) bool { return IsLine(c.Key) }) {
		stands := Cell{Known: true}
		if last := b.fence.Load(); last != nil {
			stands = *last
		}
		step.If = []Cond{{Key: fenceKey, Same: stands}}
	}
	for range maxFences {
		r, err := b.kv.Step(ctx, step)
		if err != nil || r.Met || len(step.If) == 0 {
			return r, err
		}
		now := r.If[0]
		if !now.Known {
			cells, err := b.kv.Get(ctx, Current, fenceKey)
			if err != nil {
				return r, err
			}
			now = cells[0]
		}
		if retired := RetirementIn(now.Value); retired != nil {
			return r, retired.Err()
		}
		if stands := step.If[0].Same; now.Known && bytes.Equal(now.Value, stands.Value) && now.Version == stands.Version {
			return r, nil // all changes were refused: see Step
		}
		b.fence.Store(&now)
		step.If[0].Same = now
	}
	return Result{}, fmt.Errorf("%w: the fence was changed %d times meanwhile", hapax.ErrStoreUnavailable, maxFences)
}
