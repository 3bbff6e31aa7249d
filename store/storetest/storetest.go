// Package storetest is the conformance suite that every store must pass, and a
// wrapper that injects faults into one.
//
// A driver's test states how to open the store and what it is capable of:
//
//	func TestMain(m *testing.M) { storetest.Main(m, open) }
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, storetest.Harness{
//			Open:         func(t testing.TB) storetest.Handle { … },
//			URL:          url,
//			Capabilities: storetest.Capabilities{Shared: true},
//		})
//	}
//
// The suite uses names of its own, so that it can run against a store that is
// in use, but for moments in which it raises the fence and adds to the joins of a
// store that nodes may guard. It does not need the wall clock: the times in its
// requests are fixed.
package storetest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/driver"
)

// A Handle is an open store. It also implements driver.Store, or at least
// hapax.WorkerStore and driver.PoolStore, and driver.Rows, if the capabilities
// say so.
type Handle interface {
	StoreID(ctx context.Context) (string, error)
	Ping(ctx context.Context) error
	Close() error
}

// A Harness connects the suite with a store.
type Harness struct {
	// Open opens a handle, or fails the test. The suite closes it. Unless the
	// store is Shared there is at most one open handle at a time; unless it is
	// Shared or Durable each one may stand for another, empty store.
	Open func(t testing.TB) Handle

	// URL is what the function given to Main opens the same store by in another
	// process. Required for stores that are Shared or Durable.
	URL string

	// Another returns the harness of an empty store that one check has to itself. Nil,
	// which is usual, has all checks use the same one: names of their own keep them apart.
	Another func(t testing.TB) Harness

	// Silence opens handles whose calls may take so long, of a store that says
	// nothing any more once silence was called. Required for stores that are reached
	// over a network; others leave it nil.
	Silence func(t testing.TB, timeout time.Duration) (open func(ctx context.Context) (Handle, error), silence func())

	// Estrange returns a store of its own that its driver does not take for the one it
	// was any more once estrange was called: one that was copied or moved, or that came
	// to another server. Nil for drivers that cannot tell, and leave it to a witness.
	Estrange func(t testing.TB) Estranged

	Capabilities Capabilities
}

// An Estranged store is refused until it is adopted.
type Estranged struct {
	Open     func(ctx context.Context) (Handle, error) // as nodes do; closed by the suite
	Estrange func()                                    // while no handle is open
	Adopt    func(ctx context.Context) error           // as an operator does, once
}

// Capabilities tell what may be expected of a store. The zero value is a store
// with every role that lives and dies with its handle.
type Capabilities struct {
	Shared      bool // several processes may have it open at once
	Durable     bool // what was acknowledged is there for the next handle; Shared implies it
	WorkersOnly bool // it implements hapax.WorkerStore and driver.PoolStore, but not driver.Store
	NoRows      bool // it does not implement driver.Rows
	NoGuard     bool // it implements neither driver.Guarding nor driver.Healing
	NoHandBack  bool // it takes no segments back: allocations have no key
}

// outlives reports whether the state is there for the next handle.
func (c Capabilities) outlives() bool { return c.Shared || c.Durable }

// A check is one test of the suite, as a function so that the suite's own tests
// can run it against a broken store and look whether it fails.
type check struct {
	name  string
	needs func(Capabilities) bool
	run   func(*env)
}

func always(Capabilities) bool          { return true }
func segments(c Capabilities) bool      { return !c.WorkersOnly }
func handsBack(c Capabilities) bool     { return !c.WorkersOnly && !c.NoHandBack }
func guards(c Capabilities) bool        { return !c.WorkersOnly && !c.NoRows && !c.NoGuard }
func hasRows(c Capabilities) bool       { return !c.NoRows }
func durable(c Capabilities) bool       { return c.outlives() }
func durableTags(c Capabilities) bool   { return c.outlives() && !c.WorkersOnly }
func manyProcesses(c Capabilities) bool { return c.Shared }
func durableRows(c Capabilities) bool   { return c.outlives() && !c.NoRows }
func sharedTags(c Capabilities) bool    { return c.Shared && !c.WorkersOnly }

func checks() []check {
	return slices.Concat(identityChecks, segmentChecks, handBackChecks, tagChecks, workerChecks, leaseChecks, poolChecks, rowChecks, guardChecks, healChecks, linearChecks, processChecks)
}

// Run runs every check that the capabilities call for.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.Silence != nil {
		t.Run("identity/silence", func(t *testing.T) { check{run: checkSilence}.runOn(t, h) })
		t.Run("identity/hung", func(t *testing.T) { check{run: checkHung}.runOn(t, h) })
	}
	if h.Estrange != nil {
		t.Run("identity/adopt", func(t *testing.T) { check{run: checkAdopt}.runOn(t, h) })
	}
	if h.Capabilities.outlives() && h.URL == "" {
		t.Fatal("storetest: Harness.URL is empty; the tests with several processes need it")
	}
	for _, c := range checks() {
		if c.needs(h.Capabilities) {
			t.Run(c.name, func(t *testing.T) { c.runOn(t, h) })
		}
	}
}

// runOn runs the check with a fresh handle.
func (c check) runOn(t testing.TB, h Harness) {
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	if h.Another != nil {
		h = h.Another(t)
	}
	e := &env{TB: t, h: h, ctx: ctx, prefix: "storetest-" + rand.Text()[:8] + "/"}
	e.roles = e.open()
	c.run(e)
}

// env is what a check runs in.
type env struct {
	testing.TB
	h      Harness
	ctx    context.Context
	prefix string // begins every name that the check uses
	roles         // of the check's first handle
}

// roles are the interfaces of one handle. Those that the capabilities rule out
// are nil.
type roles struct {
	handle  Handle
	store   driver.Store
	workers hapax.WorkerStore
	pools   driver.PoolStore
	rows    driver.Rows

	guarding driver.Guarding
	healing  driver.Healing
}

// open opens a handle, which is closed at the end of the test at the latest.
func (e *env) open() roles {
	e.Helper()
	return e.adopted(e.h.Open(e.TB))
}

// adopted returns the roles of a handle, which is closed at the end of the test.
func (e *env) adopted(h Handle) roles {
	e.Helper()
	r := roles{handle: h}
	e.Cleanup(func() { r.handle.Close() })
	want := func(ok bool, what string) {
		e.Helper()
		if !ok {
			e.Fatalf("%T does not implement %s", r.handle, what)
		}
	}
	var ok bool
	r.workers, ok = r.handle.(hapax.WorkerStore)
	want(ok, "hapax.WorkerStore")
	r.pools, ok = r.handle.(driver.PoolStore)
	want(ok, "driver.PoolStore")
	r.store, ok = r.handle.(driver.Store)
	want(ok || e.h.Capabilities.WorkersOnly, "driver.Store")
	r.rows, ok = r.handle.(driver.Rows)
	want(ok || e.h.Capabilities.NoRows, "driver.Rows")
	if guards(e.h.Capabilities) {
		r.guarding, ok = r.handle.(driver.Guarding)
		want(ok, "driver.Guarding")
		r.healing, ok = r.handle.(driver.Healing)
		want(ok, "driver.Healing")
	}
	return r
}

// reopen closes the check's handle and opens another.
func (e *env) reopen() {
	e.Helper()
	e.must(e.handle.Close())
	e.roles = e.open()
}

// handles returns n handles on the check's store: the same one n times unless
// the store can be shared.
func (e *env) handles(n int) []roles {
	hs := []roles{e.roles}
	for len(hs) < n {
		if e.h.Capabilities.Shared && len(hs) < 3 {
			hs = append(hs, e.open())
		} else {
			hs = append(hs, hs[len(hs)%min(len(hs), 3)])
		}
	}
	return hs
}

// name returns a name that nobody else uses.
func (e *env) name(s string) string { return e.prefix + s }

// must ends the check if err is not nil.
func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatalf("unexpected error: %v", err)
	}
}

// wantErr reports an error that does not match the sentinel.
func (e *env) wantErr(what string, err error, sentinel *hapax.Error) {
	e.Helper()
	if !errors.Is(err, sentinel) {
		e.Errorf("%s: error is %v; want %v", what, err, sentinel)
	}
}

// equal reports a difference.
func equal[T comparable](e *env, what string, got, want T) {
	e.Helper()
	if got != want {
		e.Errorf("%s is %v; want %v", what, got, want)
	}
}

// segment creates a tag that starts at 1.
func (e *env) segment(name string, step int64) hapax.Tag {
	e.Helper()
	return e.create(hapax.Tag{Name: e.name(name), Step: step}, hapax.CreateFirstUse)
}

// create creates a tag from a definition whose defaults it fills in.
func (e *env) create(def hapax.Tag, mode hapax.CreateMode) hapax.Tag {
	e.Helper()
	def, err := def.WithDefaults()
	e.must(err)
	tag, err := e.store.CreateTag(e.ctx, def, mode)
	e.must(err)
	return tag
}

// tag reads a tag.
func (e *env) tag(name string) hapax.Tag {
	e.Helper()
	tag, err := e.store.Tag(e.ctx, name)
	e.must(err)
	return tag
}

// allocate takes n numbers.
func (e *env) allocate(name string, n int64) hapax.Allocation {
	e.Helper()
	return e.allocateAfter(name, n, "")
}

// allocateAfter takes n numbers for a caller that has the key of its last
// allocation.
func (e *env) allocateAfter(name string, n int64, last hapax.GrantKey) hapax.Allocation {
	e.Helper()
	a, err := e.store.Allocate(e.ctx, name, n, last)
	e.must(err)
	return a
}

// disjoint reports grants that overlap and, if whole, gaps between them.
func (e *env) disjoint(what string, grants []hapax.Grant, whole bool) {
	e.Helper()
	if err := checkDisjoint(grants, whole); err != nil {
		e.Errorf("%s: %v", what, err)
	}
}

func checkDisjoint(grants []hapax.Grant, whole bool) error {
	grants = slices.SortedFunc(slices.Values(grants), func(a, b hapax.Grant) int { return cmp.Compare(a.Lo, b.Lo) })
	for i, g := range grants {
		switch {
		case g.Len() <= 0:
			return fmt.Errorf("[%d, %d) is empty", g.Lo, g.Hi)
		case i > 0 && g.Lo < grants[i-1].Hi:
			return fmt.Errorf("[%d, %d) overlaps [%d, %d)", g.Lo, g.Hi, grants[i-1].Lo, grants[i-1].Hi)
		case i > 0 && whole && g.Lo > grants[i-1].Hi:
			return fmt.Errorf("a gap without a fault, from %d to %d", grants[i-1].Hi, g.Lo)
		}
	}
	return nil
}
