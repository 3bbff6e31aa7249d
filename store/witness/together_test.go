package witness_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/witness"
)

// crowd has many ask at the same time, the first a little before the others, and returns what
// they were told.
func crowd(n int, ask func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = ask(i) })
		if i == 0 {
			synctest.Wait()
		}
	}
	wg.Wait()
	return errs
}

// Many who ask at the same time take a few calls, each is granted numbers of its own, and
// what a tag does not allow is told to those alone who asked for that.
func TestAllocatesTogether(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		f.create("u")
		a := f.start("a")
		f.serve(12*time.Second, a)
		var mu sync.Mutex
		calls := map[string]int{}
		a.link.set(func(op string) error {
			mu.Lock()
			defer mu.Unlock()
			calls[op]++
			return nil
		}, nil)
		syncs := witness.CountSyncs(a.witness)
		tags := []string{"t", "u", "never made"}
		for i, err := range crowd(90, func(i int) error { return a.take(tags[i%3], 10) }) {
			if want := map[bool]error{true: hapax.ErrTagNotFound}[i%3 == 2]; !errors.Is(err, want) {
				t.Errorf("who asked for %q was told %v; want %v", tags[i%3], err, want)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		// Three begin at once, one of each tag, and the rest waits, where none was answered before
		// all have asked.
		if n := calls["allocate"]; n > 12 || syncs() > n+1 {
			t.Errorf("90 took %d calls, and %d syncs of the witness; want 12 calls at most, and one sync more", n, syncs())
		}
		for _, tag := range tags[:2] {
			if n := len(f.used[tag]); n < 30 {
				t.Errorf("%d were granted numbers of %s; want 30", n, tag)
			}
		}
	})
}

// A grant among others is judged, abandoned and lost as one alone.
func TestTroubleTogether(t *testing.T) {
	for name, trouble := range map[string]func(f *fleet, a *machine){
		"the lines are put back": func(f *fleet, a *machine) {
			backup := f.store.Snapshot()
			a.must("t", 1000)
			keepRows(f.t, backup, f.store)
			f.store.Restore(backup)
		},
		"the store is put back": func(f *fleet, a *machine) {
			backup := f.store.Snapshot()
			a.must("t", 1000)
			f.store.Restore(backup)
		},
		"the answers are lost": func(f *fleet, a *machine) {
			a.link.set(nil, func(op string) error {
				if op == "allocate" {
					return errDown
				}
				return nil
			})
			time.AfterFunc(4*time.Second, func() { a.link.set(nil, nil) })
		},
		"a fence is raised meanwhile": func(f *fleet, a *machine) {
			a.link.set(nil, func(op string) error {
				if op == "allocate" { // the answer comes after the next heartbeat has found the fence
					f.fence("another")
					time.Sleep(1500 * time.Millisecond)
					a.link.set(nil, nil)
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, func(t *testing.T, f *fleet) {
				f.create("u")
				a := f.start("a")
				f.serve(12*time.Second, a)
				time.Sleep(1500 * time.Millisecond)
				a.OneStepAtATime()
				a.must("u", 10)
				trouble(f, a)
				for i, err := range crowd(20, func(i int) error { return a.take([]string{"u", "t"}[i%2], 10) }) {
					if err == nil && i%2 == 1 { // in one step with others; the first one is alone in its own
						t.Errorf("caller %d was granted numbers", i)
					}
				}
				a.within(20 * time.Second)
				for i, err := range crowd(20, func(i int) error { return a.take(fmt.Sprintf("%c", 't'+i%2), 10) }) {
					if err != nil {
						t.Errorf("caller %d: %v", i, err)
					}
				}
			})
		})
	}
}
