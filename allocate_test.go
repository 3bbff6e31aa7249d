package hapax_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/hapax-id/hapax"
)

// A scripted store knows a tag once it is made, and grants what it is told to.
type scripted struct {
	hapax.SegmentStore

	grants  hapax.Allocation
	knows   bool
	answers error // to CreateTag
	made    int
}

func (s *scripted) Allocate(_ context.Context, tag string, _ int64, _ hapax.GrantKey) (hapax.Allocation, error) {
	if !s.knows {
		return hapax.Allocation{}, fmt.Errorf("%w: %q", hapax.ErrTagNotFound, tag)
	}
	return s.grants, nil
}

func (s *scripted) CreateTag(_ context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	if mode != hapax.CreateFirstUse {
		return tag, errors.New("no first use")
	}
	s.made++
	s.knows = s.answers == nil || errors.Is(s.answers, hapax.ErrTagExists)
	return tag, s.answers
}

func TestAllocate(t *testing.T) {
	granted := func(lo, hi, from, delta, remainder int64) hapax.Allocation {
		return hapax.Allocation{Grant: hapax.Grant{Lo: lo, Hi: hi}, Tag: hapax.Tag{Delta: delta, Remainder: remainder}, From: from}
	}
	good := granted(10, 20, 10, 1, 0)
	for name, tt := range map[string]struct {
		store scripted
		mark  int64
		keep  bool // the tag is not to be made
		made  int
		told  bool // that it was made
		want  error
	}{
		"a tag that is there":               {store: scripted{grants: good, knows: true}},
		"where the last one ended":          {store: scripted{grants: good, knows: true}, mark: 10},
		"in a run that began before":        {store: scripted{grants: granted(10, 20, 5, 1, 0), knows: true}, mark: 10},
		"first use":                         {store: scripted{grants: good}, made: 1, told: true},
		"another's first use":               {store: scripted{grants: good, answers: hapax.ErrTagExists}, made: 1},
		"first use of a tombstone":          {store: scripted{answers: hapax.ErrTagDeleted}, made: 1, want: hapax.ErrTagDeleted},
		"first use, and the store is away":  {store: scripted{answers: hapax.ErrStoreUnavailable}, made: 1, want: hapax.ErrStoreUnavailable},
		"not to be made":                    {keep: true, want: hapax.ErrTagNotFound},
		"gone after use":                    {store: scripted{grants: good}, mark: 1, want: hapax.ErrStoreRolledBack},
		"gone after use, not to be made":    {mark: 1, keep: true, want: hapax.ErrStoreRolledBack},
		"below what is taken":               {store: scripted{grants: good, knows: true}, mark: 11, want: hapax.ErrStoreRolledBack},
		"below what is taken, in its end":   {store: scripted{grants: good, knows: true}, mark: 20, want: hapax.ErrStoreRolledBack},
		"an empty grant":                    {store: scripted{grants: granted(10, 10, 10, 1, 0), knows: true}, want: hapax.ErrStoreCorrupt},
		"a grant below zero":                {store: scripted{grants: granted(-1, 10, -1, 1, 0), knows: true}, want: hapax.ErrStoreCorrupt},
		"a grant above all numbers":         {store: scripted{grants: granted(10, hapax.MaxMark+1, 10, 1, 0), knows: true}, want: hapax.ErrStoreCorrupt},
		"a run that begins behind it":       {store: scripted{grants: granted(10, 20, 11, 1, 0), knows: true}, want: hapax.ErrStoreCorrupt},
		"a run from below zero":             {store: scripted{grants: granted(10, 20, -1, 1, 0), knows: true}, want: hapax.ErrStoreCorrupt},
		"no delta":                          {store: scripted{grants: granted(10, 20, 10, 0, 0), knows: true}, want: hapax.ErrStoreCorrupt},
		"a remainder that there cannot be":  {store: scripted{grants: granted(10, 20, 10, 2, 2), knows: true}, want: hapax.ErrStoreCorrupt},
		"a remainder below zero":            {store: scripted{grants: granted(10, 20, 10, 2, -1), knows: true}, want: hapax.ErrStoreCorrupt},
		"every second number":               {store: scripted{grants: granted(10, 20, 10, 2, 1), knows: true}},
		"gone, and what it would grant low": {store: scripted{grants: granted(1, 5, 1, 1, 0)}, mark: 10, want: hapax.ErrStoreRolledBack},
	} {
		t.Run(name, func(t *testing.T) {
			var events []hapax.Event
			req := hapax.AllocateRequest{Tag: "orders", Mark: tt.mark, Create: &hapax.Tag{Name: "orders"}, Observer: func(e hapax.Event) { events = append(events, e) }}
			if tt.keep {
				req.Create = nil
			}
			a, err := hapax.Allocate(t.Context(), &tt.store, req)
			if !errors.Is(err, tt.want) || err == nil && a != tt.store.grants {
				t.Errorf("granted %+v, %v; want %+v, %v", a, err, tt.store.grants, tt.want)
			}
			told := len(events) == 1 && events[0].Kind == hapax.EventTagCreated && events[0].Tag == "orders"
			if tt.store.made != tt.made || told != tt.told || len(events) > 1 {
				t.Errorf("the tag was made %d times, and %+v told; want %d, %v", tt.store.made, events, tt.made, tt.told)
			}
		})
	}
}
