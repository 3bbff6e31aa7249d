package batch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A demand is a call in a batch under test.
type demand struct {
	id  int
	key string
}

var (
	errTrip   = errors.New("the trip failed")
	errLeft   = errors.New("the caller has left")
	errClosed = errors.New("the batch is closed")
)

const forever = time.Hour

// A model is what a batch may do: it watches each trip, and what each caller is told.
type model struct {
	t    *testing.T
	b    *Batch[demand, string]
	opts Options[demand, string]

	mu     sync.Mutex // guards what follows
	rng    *rand.Rand
	trips  int
	asks   int
	keys   map[string]bool  // in trips
	came   map[string][]int // calls that were not left, in order of coming
	served map[string][]int
	tripOf map[int]int
	ended  map[int]error // what trips have come to; nil: answers
	left   map[int]bool
	stay   map[int]int // callers of a trip that have not left
	made   int         // trips
	closed bool
}

func newModel(t *testing.T, seed uint64, opts Options[demand, string]) *model {
	m := &model{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), keys: map[string]bool{}, came: map[string][]int{}, served: map[string][]int{},
		tripOf: map[int]int{}, ended: map[int]error{}, left: map[int]bool{}, stay: map[int]int{},
	}
	opts.Trip, opts.Closed = m.trip, errClosed
	opts.Left = func(cause error) error { return fmt.Errorf("%w: %w", errLeft, cause) }
	m.b = New(opts)
	m.opts = m.b.opts // with the defaults
	return m
}

// order tells which calls keep their order: those of one key, or all.
func (m *model) order(d demand) string {
	if m.opts.Key == nil {
		return ""
	}
	return d.key
}

// trip takes some time, and answers, fails or panics.
func (m *model) trip(ctx context.Context, all []demand) ([]string, error) {
	m.mu.Lock()
	m.made++
	n := m.made
	m.trips++
	m.asks += len(all)
	if m.trips > m.opts.Trips || m.asks-len(all) >= m.opts.Few {
		m.t.Errorf("%d trips of %d calls are under way; want %d, and no further one beside %d calls", m.trips, m.asks, m.opts.Trips, m.opts.Few)
	}
	if len(all) > m.opts.Most {
		m.t.Errorf("a trip is of %d calls; want at most %d", len(all), m.opts.Most)
	}
	named := map[string]bool{}
	for _, d := range all {
		if m.opts.Key != nil && m.keys[d.key] {
			m.t.Errorf("key %s is in two trips", d.key)
		}
		if named[d.key] && m.opts.Once {
			m.t.Errorf("a trip names key %s twice", d.key)
		}
		if m.left[d.id] {
			m.t.Errorf("call %d was left, and is in a trip", d.id)
		}
		if m.tripOf[d.id] > 0 {
			m.t.Errorf("call %d is in two trips", d.id)
		}
		named[d.key] = true
		m.tripOf[d.id] = n
		m.served[m.order(d)] = append(m.served[m.order(d)], d.id)
	}
	for key := range named {
		m.keys[key] = true
	}
	m.stay[n] = len(all)
	takes, comesTo := time.Duration(1+m.rng.IntN(20))*time.Millisecond, m.rng.IntN(12)
	m.mu.Unlock()
	if m.opts.Apart {
		ctx = context.WithoutCancel(ctx)
	}
	var early error
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		early = fmt.Errorf("%w: %w", errTrip, context.Cause(ctx))
	}
	synctest.Wait() // a caller whose context has ended has left
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trips--
	m.asks -= len(all)
	for key := range named {
		delete(m.keys, key)
	}
	if early != nil && len(all) > 1 && m.stay[n] > 0 && m.opts.Life.Err() == nil {
		m.t.Errorf("a trip of %d calls ended though %d callers wait for it", len(all), m.stay[n])
	}
	switch {
	case early != nil:
		m.ended[n] = early
		return nil, early
	case comesTo == 0:
		m.ended[n] = errTrip
		return nil, errTrip
	case comesTo == 1 && m.stay[n] > 0:
		m.ended[n] = errors.New("panic")
		panic(fmt.Sprint("trip ", n))
	}
	m.ended[n] = nil
	answers := make([]string, len(all))
	for i, d := range all {
		answers[i] = fmt.Sprint(n, " for ", d.id)
	}
	return answers, nil
}

// do is Do, which may panic.
func (m *model) do(ctx context.Context, d demand) (got string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = p.(error)
		}
	}()
	return m.b.Do(ctx, d)
}

// call makes a call whose caller has so much time, and looks at what it is told.
func (m *model) call(d demand, patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m.mu.Lock()
	m.came[m.order(d)] = append(m.came[m.order(d)], d.id)
	m.mu.Unlock()
	got, err := m.do(ctx, d)
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.tripOf[d.id]
	outcome, over := m.ended[n]
	switch {
	case errors.Is(err, errLeft):
		if patience == forever {
			m.t.Errorf("call %d was never answered", d.id)
		}
		m.left[d.id] = true
		m.stay[n]--
		if n == 0 {
			m.forget(d)
		}
	case errors.Is(err, errClosed):
		if !m.closed || n > 0 {
			m.t.Errorf("call %d of trip %d was told that the batch is closed", d.id, n)
		}
		m.forget(d)
	case !over:
		m.t.Errorf("call %d was told %q, %v before its trip had ended", d.id, got, err)
	case err != nil && outcome != nil && outcome.Error() == "panic":
		if !strings.Contains(err.Error(), fmt.Sprint("trip ", n)) {
			m.t.Errorf("call %d was told %v of its trip's panic", d.id, err)
		}
	case err != nil:
		if err != outcome {
			m.t.Errorf("call %d was told %v; its trip came to %v", d.id, err, outcome)
		}
	case outcome != nil || got != fmt.Sprint(n, " for ", d.id):
		m.t.Errorf("call %d was told %q; its trip %d came to %v", d.id, got, n, outcome)
	}
}

func (m *model) forget(d demand) {
	m.came[m.order(d)] = slices.DeleteFunc(m.came[m.order(d)], func(id int) bool { return id == d.id })
}

// Many call at random, some with little patience, and trips fail or panic: each call is in one trip
// at most, in the order of coming; what its trip brought is told to it alone, and not before that
// has ended; no trip is larger, and no more are under way, than may be; nobody waits for a trip that
// is over; and after Close nothing is under way.
func TestModel(t *testing.T) {
	const callers, calls, keys = 40, 6, 4
	byKey := func(d demand) string { return d.key }
	for name, opts := range map[string]Options[demand, string]{
		"one at a time":       {Most: 7},
		"one at a time apart": {Most: 5, Apart: true},
		"two at a time":       {Most: 9, Trips: 2, Few: 8},
		"by keys":             {Most: 9, Trips: 4, Few: 4, Key: byKey},
		"by keys once":        {Most: 3, Key: byKey, Once: true},
	} {
		for seed := range uint64(20) {
			synctest.Test(t, func(t *testing.T) {
				life, end := context.WithCancel(context.Background())
				defer end()
				opts.Life = life //nolint:fatcontext // a copy of the case, which each world has anew
				m := newModel(t, seed, opts)
				var wg sync.WaitGroup
				for k := range callers {
					rng := rand.New(rand.NewPCG(seed, uint64(k)+1))
					wg.Go(func() {
						for i := range calls {
							// No two come at the same time, so that their order is known.
							at := time.Now().Add(time.Duration(1+rng.IntN(30)) * time.Millisecond).Truncate(time.Millisecond)
							time.Sleep(time.Until(at.Add(time.Duration(k+1) * time.Microsecond)))
							patience := forever
							if rng.IntN(3) == 0 {
								patience = time.Duration(1+rng.IntN(30))*time.Millisecond + 500 // and ends at no moment at which a trip does
							}
							m.call(demand{callers*i + k, fmt.Sprint(rng.IntN(keys))}, patience)
						}
					})
				}
				if seed%4 == 3 { // in the middle of it
					time.Sleep(60*time.Millisecond + 700*time.Microsecond)
					m.mu.Lock()
					m.closed = true
					m.mu.Unlock()
					end()
					m.b.Close()
					m.mu.Lock()
					if m.trips > 0 {
						t.Errorf("seed %d: after Close %d trips are under way", seed, m.trips)
					}
					m.mu.Unlock()
				}
				wg.Wait()
				m.b.Close() // a trip whose callers have left may go on until here
				for key, ids := range m.came {
					if !slices.Equal(ids, m.served[key]) {
						t.Errorf("seed %d: the calls of key %q came in order %v, and were served in order %v", seed, key, ids, m.served[key])
					}
				}
				if m.b.Waiting()+len(m.b.keys)+m.b.trips+m.b.asks > 0 {
					t.Errorf("seed %d: at the end %d calls wait, %d keys are in trips, of which %d with %d calls are under way", seed, m.b.Waiting(), len(m.b.keys), m.b.trips, m.b.asks)
				}
				if m.made >= callers*calls {
					t.Errorf("seed %d: %d calls took %d trips", seed, callers*calls, m.made)
				}
			})
			if t.Failed() {
				t.Fatal(name)
			}
		}
	}
}

// Whatever waits while a trip is under way goes in the next, as far as there is room.
func TestGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, sizes := make(chan struct{}), []int(nil)
		b := New(Options[int, int]{
			Trip: func(_ context.Context, all []int) ([]int, error) {
				<-gate
				sizes = append(sizes, len(all))
				return all, nil
			},
			Most: 100,
		})
		for i := range 1 + 100 + 30 {
			go func() {
				if got, err := b.Do(t.Context(), i); got != i || err != nil {
					t.Errorf("%d: %d, %v", i, got, err)
				}
			}()
			synctest.Wait()
		}
		if n := b.Waiting(); n != 130 {
			t.Errorf("%d wait; want 130", n)
		}
		close(gate)
		synctest.Wait()
		if !slices.Equal(sizes, []int{1, 100, 30}) {
			t.Errorf("131 calls at once took trips of %v", sizes)
		}
	})
}

// Callers that come at the same moment share trips, even where none has anything to wait for, as
// in a store in memory.
func TestGathersBesideShortTrips(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // else some have come and gone before the others come
	trips := 0
	b := New(Options[int, int]{
		Trip: func(_ context.Context, all []int) ([]int, error) {
			trips++ // one is under way at a time
			return all, nil
		},
		Most: 100,
	})
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() { _, _ = b.Do(t.Context(), i) })
	}
	wg.Wait()
	if trips > 50 { // each preemption may make for one more
		t.Errorf("100 calls at once took %d trips; want few", trips)
	}
}

// Beside as many asks as a trip may have nothing begins, whatever Few says.
func TestFewIsAtMostMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		b := New(Options[int, int]{
			Trip: func(_ context.Context, all []int) ([]int, error) { <-gate; return all, nil },
			Most: 2, Trips: 9, Few: 5,
		})
		for i := range 4 {
			go func() { _, _ = b.Do(t.Context(), i) }()
			synctest.Wait()
		}
		if n := b.Waiting(); n != 2 {
			t.Errorf("of 4 calls %d wait; want 2", n)
		}
		close(gate)
		synctest.Wait() // before the context of the calls ends
	})
}

// The trip of a lone call has its caller's context, and none that the batch's life would keep.
func TestLoneCallHasNoContext(t *testing.T) {
	b := New(Options[int, int]{Most: 1, Life: t.Context()})
	if lone, err := b.enter(&call[int, int]{}); err != nil || lone.ctx != nil {
		t.Errorf("it has %v, %v", lone.ctx, err)
	}
}

// A lone call may leave a trip behind that heeds no context; else its context ends the trip, and
// so does the end of the batch's life.
func TestLoneCall(t *testing.T) {
	for name, v := range map[string]struct {
		apart, leaves bool
		want          error
	}{
		"it leaves its trip behind":   {true, true, errLeft},
		"its context ends its trip":   {false, true, errTrip},
		"the batch's life ends":       {false, false, errTrip},
		"the batch's life ends apart": {true, false, errTrip},
	} {
		synctest.Test(t, func(t *testing.T) {
			life, end := context.WithCancel(t.Context())
			ctx, leave := context.WithCancel(t.Context())
			b := New(Options[int, int]{
				Trip: func(ctx context.Context, _ []int) ([]int, error) {
					<-ctx.Done()
					return nil, errTrip
				},
				Most: 1, Apart: v.apart, Life: life, Left: func(error) error { return errLeft },
			})
			time.AfterFunc(time.Second, map[bool]func(){false: end, true: leave}[v.leaves])
			if _, err := b.Do(ctx, 1); err != v.want {
				t.Errorf("%s: %v; want %v", name, err, v.want)
			}
			end()
			b.Close()
			leave()
		})
	}
}

// A trip goes on while one of its callers waits, and ends once all have left.
func TestLastOneLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, end := context.WithCancel(t.Context())
		defer end()
		gate := make(chan struct{})
		ended := 0
		b := New(Options[int, int]{
			Trip: func(ctx context.Context, all []int) ([]int, error) {
				if all[0] == 0 {
					<-gate
					return all, nil
				}
				<-ctx.Done()
				ended = len(all)
				return nil, errTrip
			},
			Most: 9, Life: life, Left: func(error) error { return errLeft },
		})
		leave := make([]context.CancelFunc, 3)
		for i := range leave {
			var ctx context.Context
			ctx, leave[i] = context.WithCancel(t.Context())
			go func() { _, _ = b.Do(ctx, i) }()
			synctest.Wait()
		}
		close(gate)
		synctest.Wait()
		for i, want := range []int{0, 0, 2} {
			leave[i]()
			if synctest.Wait(); ended != want {
				t.Errorf("after %d have left a trip of %d has ended; want %d", i+1, ended, want)
			}
		}
	})
}

// An answer that is there when the context ends is used.
func TestAnswerAtTheEnd(t *testing.T) {
	b := New(Options[int, int]{Most: 1})
	c := &call[int, int]{done: make(chan struct{}), value: 5, trip: &trip[int, int]{stay: 2}}
	close(c.done)
	if b.leave(c) {
		t.Error("it is left")
	}
}

// A panic whose callers have all left is heard by the process, not lost.
func TestPanicOfNobody(t *testing.T) {
	b := New(Options[int, int]{Most: 1})
	one := &trip[int, int]{calls: []*call[int, int]{{}}, stay: 1}
	_, one.calls[0].err = b.try(t.Context(), nil) // without a Trip
	if text := fmt.Sprint(one.calls[0].err); !strings.Contains(text, "internal/batch.") {
		t.Errorf("the panic does not tell where it was: %s", text)
	}
	b.mustBeHeard(one)
	defer func() {
		if recover() == nil {
			t.Error("nobody hears of it")
		}
	}()
	one.stay = 0
	b.mustBeHeard(one)
}

// Nothing is asked for a caller that has gone before it came, nor after Close.
func TestCallOfNobody(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := New(Options[int, int]{
		Trip: func(context.Context, []int) ([]int, error) { t.Error("a trip is made"); return nil, errTrip },
		Most: 1, Left: func(err error) error { return fmt.Errorf("%w: %w", errLeft, err) }, Closed: errClosed,
	})
	if _, err := b.Do(ctx, 1); !errors.Is(err, errLeft) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	b.Close()
	if _, err := b.Do(t.Context(), 1); err != errClosed {
		t.Error(err)
	}
}
