package ondemand

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
)

var (
	errRefused = errors.New("refused")
	errEnded   = errors.New("ended")
)

// A thing counts how often it was closed.
type thing struct{ closed int }

func (t *thing) Close() error { t.closed++; return nil }

// A bench opens things.
type bench struct {
	*Handle[*thing]

	t      *testing.T
	opens  int
	open   bool  // somebody opens
	fails  error // the next attempts
	takes  time.Duration
	due    bool
	opened []*thing
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t}
	began := time.Now()
	b.Handle = New(Options[*thing]{
		Pause: time.Second, Clock: func() time.Duration { return time.Since(began) }, Ended: errEnded, Due: func() bool { return b.due },
		Open: func(context.Context) (*thing, error) {
			if b.open {
				t.Error("two open it at once")
			}
			b.open = true
			time.Sleep(b.takes)
			b.open = false
			if b.opens++; b.fails != nil {
				return nil, b.fails
			}
			b.opened = append(b.opened, &thing{})
			return b.opened[len(b.opened)-1], nil
		},
	})
	return b
}

// wants gets it, and expects so many attempts in all.
func (b *bench) wants(what string, opens int, want error) *thing {
	b.t.Helper()
	got, err := b.Get(b.t.Context())
	if !errors.Is(err, want) || (got != nil) != (want == nil) || b.opens != opens {
		b.t.Errorf("%s: %v, %v, opened %d times; want %v, %d", what, got, err, b.opens, want, opens)
	}
	return got
}

// It is opened once for all, not again during the pause after a failure, and anew once it was taken.
func TestOpensWhenNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		if _, open := b.Peek(); open {
			t.Error("open before it was needed")
		}
		b.fails = errRefused
		b.wants("at first", 1, errRefused)
		time.Sleep(time.Second - 1)
		b.wants("during the pause", 1, errRefused)
		b.due = true
		b.wants("where the pause is over early", 2, errRefused)
		b.due = false
		b.wants("during the next pause", 2, errRefused)
		time.Sleep(time.Second)
		b.fails = nil
		first := b.wants("after the pause", 3, nil)
		if again := b.wants("again", 3, nil); again != first {
			t.Error("another one")
		}
		if taken, open := b.Take(); taken != first || !open || first.closed != 0 {
			t.Errorf("took %v, %v, closed %d times", taken, open, first.closed)
		}
		if taken, open := b.Take(); taken != nil || open {
			t.Errorf("took %v again", taken)
		}
		b.fails = errRefused
		b.wants("after it was taken", 4, errRefused)
		b.Take()
		b.fails = nil
		last := b.wants("after nothing was taken", 5, nil)
		if last == nil {
			return
		}
		if err := errors.Join(b.Close(), b.Close()); err != nil || last.closed != 1 || first.closed != 0 {
			t.Errorf("closed %d times, %v; the one that was taken %d times", last.closed, err, first.closed)
		}
		b.wants("at the end", 5, errEnded)
	})
}

// Callers wait for the one that opens, as long as their context allows, and share what comes of it.
func TestOneOpensForAll(t *testing.T) {
	for _, fails := range []error{nil, errRefused} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.fails, b.takes = fails, time.Minute
			var wg sync.WaitGroup
			for range 10 {
				wg.Go(func() {
					if _, err := b.Get(t.Context()); !errors.Is(err, fails) {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := b.Get(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, hapax.ErrStoreUnavailable) {
				t.Errorf("without the patience: %v", err)
			}
			wg.Wait()
			if b.opens != 1 {
				t.Errorf("opened %d times", b.opens)
			}
		})
	}
}

// What is opened for a handle that was ended meanwhile is closed.
func TestEndedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.takes = time.Minute
		done := make(chan error, 1)
		go func() { _, err := b.Get(t.Context()); done <- err }()
		synctest.Wait()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, errEnded) || len(b.opened) != 1 || b.opened[0].closed != 1 {
			t.Errorf("%v, opened %d", err, len(b.opened))
		}
		if _, open := b.Peek(); open {
			t.Error("open after its end")
		}
	})
}

// A caller that leaves while it opens keeps nobody else from it: the next one opens it at once.
func TestCallerLeavesWhileItOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		h := New(Options[*thing]{
			Pause: time.Second, Clock: func() time.Duration { return time.Since(began) }, Ended: errEnded,
			Open: func(ctx context.Context) (*thing, error) {
				select {
				case <-time.After(time.Millisecond):
					return &thing{}, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			},
		})
		left, leave := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := h.Get(left); done <- err }()
		synctest.Wait()
		leave()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the caller that left: %v", err)
		}
		if got, err := h.Get(t.Context()); got == nil || err != nil {
			t.Errorf("the next one: %v, %v", got, err)
		}
	})
}
