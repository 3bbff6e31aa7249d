// Package contest tests that a row of a foreign table and the tag of the store that it was moved to are
// never both open, whoever comes in between or is killed there.
package contest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// A Row is a row of a foreign table, in a database of its own, and what may be done to it.
type Row struct {
	Server *testservers.Server
	URL    string
	Tag    string // what its tag is called

	// Reset has it issue from 101 on, in segments of 10.
	Reset func(t *testing.T)

	// Takes takes a segment as the foreign system does.
	Takes func(ctx context.Context) (g hapax.Grant, ok bool)

	// Set sets its max_id, by hand, and Get tells it, whatever the row is called by now.
	Set func(t *testing.T, maxID int64)
	Get func(t *testing.T) (maxID int64)

	// Open opens the table at a URL, for calls that may take so long; 0 is the usual time.
	Open func(t *testing.T, url string, timeout time.Duration) Commands

	// Writes reports whether a request to the server changes something at once.
	Writes func(request []byte) bool
}

// Commands plan a move or its way back, with a margin of 1, and carry it out.
type Commands struct {
	Plan     func(ctx context.Context, target moves.Target, undo bool) ([]moves.Move, error)
	CarryOut func(ctx context.Context, target moves.Target, all []moves.Move, undo bool) error
}

// carryOut carries out what was planned, of which nothing may be refused.
func (c Commands) carryOut(ctx context.Context, target moves.Target, all []moves.Move, undo bool) error {
	err := c.CarryOut(ctx, target, all, undo)
	for _, m := range all {
		err = errors.Join(err, m.Reason)
	}
	return err
}

// Do plans, and carries out; nothing may be refused.
func (c Commands) Do(ctx context.Context, target moves.Target, undo bool) error {
	all, err := c.Plan(ctx, target, undo)
	if err != nil {
		return err
	}
	return c.carryOut(ctx, target, all, undo)
}

// A contest is a row that the foreign system and two stores may come to issue from.
type contest struct {
	Row
	Commands

	stores [2]*memstore.Store
	taken  map[hapax.Grant]string // to their takers
}

const theirs = "the old system"

// begin begins anew with the row.
func begin(t *testing.T, r Row, commands Commands) *contest {
	r.Reset(t)
	return &contest{r, commands, [2]*memstore.Store{memstore.New(), memstore.New()}, map[hapax.Grant]string{{Lo: 1, Hi: 101}: theirs}}
}

// issue has all issue that can, and returns their names; more than one, and numbers that come
// twice, are errors.
func (c *contest) issue(t *testing.T) string {
	t.Helper()
	var who []string
	for range 3 { // far enough to meet
		who = nil
		note := func(by string, g hapax.Grant) {
			who = append(who, by)
			for other, whose := range c.taken {
				if g.Lo < other.Hi && other.Lo < g.Hi {
					t.Errorf("%s issues %v, and %s had %v", by, g, whose, other)
				}
			}
			c.taken[g] = by
		}
		if g, ok := c.Takes(t.Context()); ok {
			note(theirs, g)
		}
		for k, store := range c.stores {
			a, err := store.Allocate(t.Context(), c.Tag, 10, "")
			if err == nil {
				note(fmt.Sprintf("store %d", k), a.Grant)
			} else if !errors.Is(err, hapax.ErrTagDeleted) && !errors.Is(err, hapax.ErrTagNotFound) {
				t.Error(err)
			}
		}
	}
	if len(who) > 1 {
		t.Errorf("%s issue at the same time", strings.Join(who, " and "))
	}
	return strings.Join(who, " and ")
}

// deletedTag has a store know a tag that somebody made, and deleted.
func (c *contest) deletedTag(t *testing.T, store *memstore.Store, start int64) {
	t.Helper()
	def, err := hapax.Tag{Name: c.Tag, Start: start}.WithDefaults()
	if err == nil {
		_, err = store.CreateTag(t.Context(), def, hapax.CreateExplicit)
	}
	if err == nil {
		_, err = store.DeleteTag(t.Context(), c.Tag)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (c *contest) must(t *testing.T, target moves.Target, undo bool) {
	t.Helper()
	if err := c.Do(t.Context(), target, undo); err != nil {
		t.Fatalf("undo %v: %v", undo, err)
	}
}

// Elsewhere tests that a store that had the row once, or has a tag of its name, does not give back what
// another store has taken since, whenever it planned to. name returns what the refusal calls a store.
func Elsewhere(t *testing.T, r Row, name func(id string) string) {
	commands := r.Open(t, r.URL, 0)
	named := func(t *testing.T, store *memstore.Store) string {
		t.Helper()
		id, err := store.StoreID(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return name(id)
	}
	for _, withdrawn := range []bool{false, true} {
		c := begin(t, r, commands)
		a, b := c.stores[0], c.stores[1]
		var early []moves.Move
		if withdrawn {
			c.must(t, a, false)
			var err error
			if early, err = c.Plan(t.Context(), a, true); err != nil {
				t.Fatal(err)
			}
			c.must(t, a, true)
		}
		c.must(t, b, false)
		if who := c.issue(t); who != "store 1" {
			t.Fatalf("%s issues", who)
		}
		if !withdrawn {
			c.deletedTag(t, a, 1<<40)
		}
		if err := c.carryOut(t.Context(), a, early, true); withdrawn && (err == nil || !strings.Contains(err.Error(), named(t, b))) {
			t.Errorf("the way back, planned early: %v; want it refused, with store %s", err, named(t, b))
		}
		for _, undo := range []bool{true, false} {
			if all, err := c.Plan(t.Context(), a, undo); err != nil || len(all) != 1 || all[0].Reason == nil || all[0].Changes() {
				t.Errorf("undo %v is planned: %+v, %v; want it refused", undo, all, err)
			}
			if err := c.Do(t.Context(), a, undo); err == nil || !strings.Contains(err.Error(), named(t, b)) || !strings.Contains(err.Error(), named(t, a)) {
				t.Errorf("undo %v: %v; want it refused, with the stores %s and %s", undo, err, named(t, a), named(t, b))
			}
			if who := c.issue(t); who != "store 1" {
				t.Errorf("undo %v: then %s issues", undo, who)
			}
		}
		c.must(t, b, true)
		if who := c.issue(t); who != theirs {
			t.Errorf("after the way back %s issues", who)
		}
	}
}

// PlansOnly tests that a plan changes nothing, whatever was done before: by an account at that URL, which
// may only read, and with a target of which no call is done that changes something.
func PlansOnly(t *testing.T, r Row, url string) {
	all, looks := r.Open(t, r.URL, 0), r.Open(t, url, 0)
	for _, state := range []string{"open", "moving", "moved", "open again"} {
		c := begin(t, r, all)
		own := c.stores[0]
		target := &unmade{&struck{Target: own}}
		target.dead.Store(true)
		switch state {
		case "moving":
			_ = c.Do(t.Context(), target, false) // it is killed
		case "moved":
			c.must(t, own, false)
		case "open again":
			c.must(t, own, false)
			c.must(t, own, true)
		}
		for _, undo := range []bool{false, true} {
			for _, one := range []moves.Target{target, c.stores[1]} {
				before, err := c.Plan(t.Context(), one, undo)
				var after []moves.Move
				if err == nil {
					after, err = looks.Plan(t.Context(), one, undo)
				}
				if err != nil || fmt.Sprint(before) != fmt.Sprint(after) {
					t.Errorf("%s, undo %v: %v, then %v, %v; want the same plan", state, undo, before, after, err)
				}
			}
		}
		if who := c.issue(t); who != map[string]string{"open": theirs, "moved": "store 0", "open again": theirs}[state] {
			t.Errorf("%s: after the plans %q issues", state, who)
		}
		if _, err := c.stores[1].Tag(t.Context(), r.Tag); !errors.Is(err, hapax.ErrTagNotFound) {
			t.Errorf("%s: a plan has made a tag: %v", state, err)
		}
	}
}

// Extremes tests that a row that comes to a max_id with which nothing can be done, once the move was
// planned, is refused as it is.
func Extremes(t *testing.T, r Row) {
	commands := r.Open(t, r.URL, 0)
	for _, maxID := range []int64{math.MaxInt64, math.MaxInt64 - 3, hapax.MaxMark + 1, hapax.MaxMark, -1, math.MinInt64} {
		c := begin(t, r, commands)
		own := c.stores[0]
		all, err := c.Plan(t.Context(), own, false)
		if err != nil {
			t.Fatal(err)
		}
		r.Set(t, maxID)
		err = c.CarryOut(t.Context(), own, all, false)
		if err != nil || len(all) != 1 || !errors.Is(all[0].Reason, hapax.ErrInvalidArgument) || all[0].Closed {
			t.Errorf("%d: %+v, %v; want it refused", maxID, all, err)
		}
		if _, err := own.Tag(t.Context(), r.Tag); !errors.Is(err, hapax.ErrTagNotFound) || r.Get(t) != maxID {
			t.Errorf("%d: max_id is %d, and natively there is %v", maxID, r.Get(t), err)
		}
		if all, err = c.Plan(t.Context(), own, false); err != nil || len(all) != 1 || all[0].Reason == nil {
			t.Errorf("%d is planned: %+v, %v; want it refused", maxID, all, err)
		}
		r.Set(t, 100)
		c.must(t, own, false)
		if who := c.issue(t); who != "store 0" {
			t.Errorf("%d, corrected: %q issues", maxID, who)
		}
	}
}

// A struck is a target at one of whose calls something happens: before it, or after it is done
// and before that is known.
type struck struct {
	moves.Target

	at, calls int
	after     bool
	by        func() error
	dead      atomic.Bool // the command was killed: it calls nothing any more
}

var errKilled = fmt.Errorf("%w: killed", hapax.ErrStoreUnavailable)

func strike[T any](s *struck, do func() (T, error)) (T, error) {
	var none T
	if s.dead.Load() {
		return none, errKilled
	}
	s.calls++
	hit := s.calls == s.at
	if hit && !s.after {
		if err := s.by(); err != nil {
			return none, err
		}
	}
	v, err := do()
	if hit && s.after {
		err = errors.Join(err, s.by())
	}
	return v, err
}

// An unmade is a target of which no call but Tag is done.
type unmade struct{ *struck }

func (u *unmade) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	return u.Target.Tag(ctx, name)
}

func (s *struck) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	return strike(s, func() (hapax.Tag, error) { return s.Target.Tag(ctx, name) })
}

func (s *struck) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	return strike(s, func() (hapax.Tag, error) { return s.Target.CreateTag(ctx, tag, mode) })
}

func (s *struck) UpdateTag(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	return strike(s, func() (hapax.Tag, error) { return s.Target.UpdateTag(ctx, name, u) })
}

func (s *struck) DeleteTag(ctx context.Context, name string) (hapax.Tag, error) {
	return strike(s, func() (hapax.Tag, error) { return s.Target.DeleteTag(ctx, name) })
}

// Killed tests that wherever a move or its way back is killed, before a statement or its answer, or
// before a call of the store or its answer, never do both issue, and either command goes on from there.
func Killed(t *testing.T, r Row) {
	if r.Server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	proxy := testservers.NewProxy(t, r.Server.Addr)
	direct, through := r.Open(t, r.URL, 0), r.Open(t, proxy.URL(r.URL), 0)
	hits := 0
	for _, undo := range []bool{false, true} {
		for _, where := range []string{"statement", "answer of a change", "call", "answer of a call"} {
			for at, hit := 1, true; hit; at++ {
				for _, back := range []bool{false, true} {
					c := begin(t, r, direct)
					own := c.stores[0]
					if at%2 == 0 { // far behind the row
						c.deletedTag(t, own, 5)
					}
					if undo {
						c.must(t, own, false)
						c.issue(t)
					}
					all, err := c.Plan(t.Context(), own, undo)
					if err != nil {
						t.Fatal(err)
					}
					target := &struck{Target: own, after: where == "answer of a call"}
					target.by = func() error {
						target.dead.Store(true)
						return errKilled
					}
					nth := testservers.Nth(at)
					match := func(b []byte) bool {
						return (where == "statement" || r.Writes(b)) && nth(b) && target.by() != nil
					}
					fired := proxy.Fired()
					switch where {
					case "statement":
						proxy.CutRequest(match)
					case "answer of a change":
						proxy.CutReply(match)
					default:
						target.at = at
					}
					err = through.carryOut(t.Context(), target, all, undo)
					proxy.Pass()
					hit = proxy.Fired() > fired || target.at > 0 && target.calls >= target.at
					name := fmt.Sprintf("undo %v, %s %d and it is killed (%v)", undo, where, at, err)
					if hit {
						hits++
					}
					c.issue(t)
					want := "store 0"
					err = c.Do(t.Context(), own, back)
					if undo && !back && err != nil && strings.Contains(err.Error(), "--undo opens the row again") { // its tag is deleted already
						back, err = true, c.Do(t.Context(), own, true)
					}
					if back {
						want = theirs
					}
					if who := c.issue(t); err != nil || who != want {
						t.Errorf("%s: after undo %v, %v, %s issues; want %s", name, back, err, who, want)
					}
					if t.Failed() {
						t.Fatal(name)
					}
				}
			}
		}
	}
	if hits < 30 {
		t.Errorf("only %d commands were struck", hits)
	}
}

// AtOnce tests that another command that comes in at any statement or call of a move, or of its way
// back, finds the row its own or is refused: nobody issues what somebody else does.
func AtOnce(t *testing.T, r Row) {
	if r.Server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	proxy := testservers.NewProxy(t, r.Server.Addr)
	direct, through := r.Open(t, r.URL, 0), r.Open(t, proxy.URL(r.URL), 0)
	late := r.Open(t, r.URL, 50*time.Millisecond) // it may have to wait for the row
	calls := []string{"call", "answer of a call"}
	for _, undo := range []bool{false, true} {
		for _, comes := range []struct {
			name   string
			store  int
			undo   bool
			cutOff bool // the command in the middle of which it comes loses its connections before
			after  bool // a move that was killed before there was a tag
			where  []string
		}{
			{"the same", 0, undo, false, false, calls},
			{"its opposite", 0, !undo, false, false, append(calls, "statement")},
			{"its opposite, once the row is let go", 0, !undo, true, false, calls},
			{"its opposite, after a move that was killed", 0, !undo, false, true, calls},
			{"its opposite, after a move that was killed, once the row is let go", 0, !undo, true, true, calls},
			{"another store's move", 1, false, false, false, append(calls, "statement")},
			{"another store's way back", 1, true, false, false, calls},
			{"another store's, once the row is let go", 1, false, true, false, calls},
		} {
			for _, where := range comes.where {
				for at, hit := 1, true; hit; at++ {
					c := begin(t, r, direct)
					own := c.stores[0]
					if comes.after {
						dead := &struck{Target: own}
						dead.dead.Store(true)
						_ = c.Do(t.Context(), &unmade{dead}, false)
					} else if undo {
						c.must(t, own, false)
						c.issue(t)
					}
					all, err := c.Plan(t.Context(), own, undo)
					if err != nil {
						t.Fatal(err)
					}
					hit = false
					come := func() {
						hit = true
						with := late
						if comes.cutOff {
							proxy.Cut()
							proxy.Pass()
							with = direct
						}
						_ = with.Do(t.Context(), c.stores[comes.store], comes.undo) // it may be refused
					}
					target := &struck{Target: own, after: where == "answer of a call", by: func() error {
						come()
						return nil
					}}
					if where == "statement" {
						nth := testservers.Nth(at)
						proxy.CutRequest(func(b []byte) bool {
							if nth(b) {
								come()
							}
							return false
						})
					} else {
						target.at = at
					}
					err = through.carryOut(t.Context(), target, all, undo)
					proxy.Pass()
					c.issue(t)
					for _, store := range c.stores { // whose it is not is refused
						_ = c.Do(t.Context(), store, true)
					}
					if who := c.issue(t); who != theirs {
						t.Errorf("after the way back %q issues", who)
					}
					if t.Failed() {
						t.Fatalf("undo %v, and %s comes in at %s %d: %v", undo, comes.name, where, at, err)
					}
				}
			}
		}
	}
}
