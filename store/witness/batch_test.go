package witness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
)

// A demand is a call in a batcher under test.
type demand struct {
	id  int
	tag string
	n   int64
}

// A portion is what one call was granted.
type portion struct {
	demand
	lo int64
}

// batched is a store with marks of tags, and what became of each call of a run.
type batched struct {
	t *testing.T
	b *batcher[demand, portion]

	mu      sync.Mutex // guards what follows
	rng     *rand.Rand
	marks   map[string]int64
	inStep  map[string]bool
	arrived map[string][]int // calls that were not left, in order of coming
	served  map[string][]int
	granted map[int]portion
	failed  map[int]error
	left    map[int]bool
	steps   int
}

func newBatched(t *testing.T, seed uint64, merges bool, most, few int) *batched {
	m := &batched{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), marks: map[string]int64{}, inStep: map[string]bool{}, arrived: map[string][]int{},
		served: map[string][]int{}, granted: map[int]portion{}, failed: map[int]error{}, left: map[int]bool{},
	}
	m.b = &batcher[demand, portion]{
		tag: func(d demand) string { return d.tag }, merges: merges, most: most, few: few,
		step: func(ctx context.Context, all []demand) ([]portion, error) { return m.grantAll(ctx, all) }, start: func(f func()) { go f() }, life: t.Context(),
	}
	return m
}

var errStep = fmt.Errorf("%w: the step failed", hapax.ErrStoreUnavailable)

// grantAll grants, in some time, or fails, also where its context ends meanwhile.
func (m *batched) grantAll(ctx context.Context, all []demand) ([]portion, error) {
	m.mu.Lock()
	m.steps++
	if len(all) > m.b.most {
		m.t.Errorf("a step is of %d calls; want at most %d", len(all), m.b.most)
	}
	named := map[string]bool{}
	for _, d := range all {
		if m.inStep[d.tag] {
			m.t.Errorf("tag %s is in two steps", d.tag)
		}
		if named[d.tag] && !m.b.merges {
			m.t.Errorf("a step names tag %s twice", d.tag)
		}
		if m.left[d.id] {
			m.t.Errorf("call %d was left, and is in a step", d.id)
		}
		if slices.Contains(m.served[d.tag], d.id) {
			m.t.Errorf("call %d is in two steps", d.id)
		}
		named[d.tag] = true
		m.served[d.tag] = append(m.served[d.tag], d.id)
	}
	for tag := range named {
		m.inStep[tag] = true
	}
	takes, fails := time.Duration(1+m.rng.IntN(20))*time.Millisecond, m.rng.IntN(8) == 0
	m.mu.Unlock()
	var ended error
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		ended = fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for tag := range named {
		delete(m.inStep, tag)
	}
	if ended != nil && len(all) > 1 {
		m.t.Errorf("a step of %d calls ended with the context of one of them", len(all))
	}
	if ended != nil {
		return nil, ended
	}
	made := make([]portion, len(all))
	for i, d := range all {
		if fails {
			m.failed[d.id] = fmt.Errorf("%w: call %d", errStep, d.id)
			continue
		}
		made[i] = portion{d, m.marks[d.tag]}
		m.marks[d.tag] += d.n
		m.granted[d.id] = made[i]
	}
	if fails {
		return nil, errStep
	}
	return made, nil
}

// call makes a call whose caller has so much time, and looks at what it is told.
func (m *batched) call(d demand, patience time.Duration) {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	m.mu.Lock()
	m.arrived[d.tag] = append(m.arrived[d.tag], d.id)
	m.mu.Unlock()
	got, err := m.b.do(ctx, d)
	m.mu.Lock()
	defer m.mu.Unlock()
	granted, was := m.granted[d.id]
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		if patience == time.Hour {
			m.t.Errorf("call %d of tag %s was never answered", d.id, d.tag)
		}
		if !errors.Is(err, hapax.ErrStoreUnavailable) {
			m.t.Errorf("call %d was left with %v", d.id, err)
		}
		if !slices.Contains(m.served[d.tag], d.id) {
			m.left[d.id] = true
			m.arrived[d.tag] = slices.DeleteFunc(m.arrived[d.tag], func(id int) bool { return id == d.id })
		}
	case err != nil:
		if !errors.Is(err, errStep) || m.failed[d.id] == nil {
			m.t.Errorf("call %d was told %v; its step has failed: %v", d.id, err, m.failed[d.id])
		}
	case !was || got != granted:
		m.t.Errorf("call %d was given %+v; the store has granted %+v, %v", d.id, got, granted, was)
	}
}

// Many call at random, some with little patience, and steps fail: each call is in one step at
// most, in the order of coming; what its step brought is told to it alone; a tag is in one step
// at a time, and nobody waits for a step that is over.
func TestBatcher(t *testing.T) {
	const callers, calls, tags = 40, 6, 4
	for seed := range uint64(20) {
		for _, merges := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				m := newBatched(t, seed, merges, 2+int(seed%9), 1+int(seed%4))
				var wg sync.WaitGroup
				for k := range callers {
					rng := rand.New(rand.NewPCG(seed, uint64(k)+1))
					wg.Go(func() {
						for i := range calls {
							// No two come at the same time, so that their order is known.
							at := time.Now().Add(time.Duration(1+rng.IntN(30)) * time.Millisecond).Truncate(time.Millisecond)
							time.Sleep(time.Until(at.Add(time.Duration(k) * time.Microsecond)))
							patience := time.Hour
							if rng.IntN(3) == 0 {
								patience = time.Duration(1+rng.IntN(30))*time.Millisecond + 500 // and ends at no moment at which a step does
							}
							m.call(demand{callers*i + k, fmt.Sprint(rng.IntN(tags)), 1 + rng.Int64N(9)}, patience)
						}
					})
				}
				wg.Wait()
				synctest.Wait()
				time.Sleep(time.Second) // a step whose callers have left may go on
				for tag, ids := range m.arrived {
					if !slices.Equal(ids, m.served[tag]) {
						t.Errorf("seed %d: the calls of tag %s came in order %v, and were served in order %v", seed, tag, ids, m.served[tag])
					}
				}
				if len(m.b.waiting)+len(m.b.busy)+m.b.calls > 0 {
					t.Errorf("seed %d: at the end %d calls wait, %d tags are in steps, and %d calls", seed, len(m.b.waiting), len(m.b.busy), m.b.calls)
				}
				if m.steps >= callers*calls {
					t.Errorf("seed %d: %d calls took %d steps", seed, callers*calls, m.steps)
				}
			})
		}
	}
}

// Whatever waits while a step is under way is one step after it.
func TestBatcherMerges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newBatched(t, 1, true, 100, 1)
		var wg sync.WaitGroup
		for i := range 1 + 100 + 30 {
			wg.Go(func() { m.call(demand{i, fmt.Sprint(i % 7), 1}, time.Hour) })
			synctest.Wait()
		}
		wg.Wait()
		if m.steps != 3 {
			t.Errorf("131 calls at once took %d steps; want one of 1, one of 100, one of 30", m.steps)
		}
	})
}

// An answer that is there when the context ends is used.
func TestAnswerAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 { // either of the two may be seen first
			m := newBatched(t, 1, true, 1, 1)
			c := &turn[demand, portion]{done: make(chan answer[portion], 1)}
			c.done <- answer[portion]{value: portion{lo: 5}}
			if got, err := m.b.result(ctx, c); err != nil || got.lo != 5 {
				t.Fatalf("%+v, %v", got, err)
			}
		}
	})
}

// Nothing is asked for a caller that has gone before it came.
func TestCallOfNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		m := newBatched(t, 1, true, 1, 1)
		if _, err := m.b.do(ctx, demand{}); !errors.Is(err, context.Canceled) || !errors.Is(err, hapax.ErrStoreUnavailable) || m.steps != 0 {
			t.Errorf("%v after %d steps", err, m.steps)
		}
	})
}

// A store that grants two callers of one step the same numbers is corrupt, and grants nothing.
func TestOneStretchForTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := servingScene(t)
		var once sync.Once
		gate := make(chan struct{})
		c.store.before = func(call string) {
			if call == "allocate" {
				once.Do(func() { <-gate })
			}
		}
		var first *hapax.Allocation // of the second step
		calls := 0
		c.store.alloc = func(a *hapax.Allocation) {
			if calls++; calls == 2 {
				first = a
			} else if calls == 3 {
				*a = *first
			}
		}
		errs := make([]error, 3)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { _, errs[i] = c.g.Allocate(t.Context(), "t", 10, "") })
			synctest.Wait()
		}
		close(gate)
		wg.Wait()
		if errs[0] != nil || !errors.Is(errs[1], hapax.ErrStoreCorrupt) || !errors.Is(errs[2], hapax.ErrStoreCorrupt) {
			t.Errorf("they are told %v; want ErrStoreCorrupt for the second and the third", errs)
		}
	})
}
