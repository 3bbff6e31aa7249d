package witness

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// Options outside their ranges are refused by name, and their limits are inside.
func TestLimitsOfOptions(t *testing.T) {
	for d, ok := range map[time.Duration]bool{100*time.Millisecond - 1: false, 100 * time.Millisecond: true, time.Minute: true, time.Minute + 1: false, 0: true} {
		o, err := Options{Heartbeat: d}.withDefaults()
		if (err == nil) != ok || err != nil && (!errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "heartbeat")) || ok && d == 0 && o.Heartbeat != DefaultHeartbeat {
			t.Errorf("a heartbeat every %v: %v", d, err)
		}
	}
	if o, err := (Options{}).withDefaults(); err != nil || o.Name == "" || o.Log == nil || o.Clock == nil || o.Timeout != DefaultTimeout {
		t.Errorf("the defaults are %+v, %v", o, err)
	}
	name := strings.Repeat("x", MaxAddress)
	if o, err := (Options{Name: name}).withDefaults(); err != nil || o.Name != name {
		t.Errorf("a name of the longest length becomes %q, %v", o.Name, err)
	}
}

// Open takes a directory or a file for the witness, closes it again, and keeps nothing open
// after an error.
func TestOpensItsWitness(t *testing.T) {
	dir := t.TempDir()
	dial := func(context.Context) (driver.Store, error) { return memstore.New(), nil }
	for path, want := range map[string]string{dir: filepath.Join(dir, DefaultFile), filepath.Join(dir, "w"): filepath.Join(dir, "w")} {
		for range 2 {
			if g, err := Open(t.Context(), dial, path, Options{Heartbeat: 1}); err == nil {
				t.Errorf("with bad options it opens %v", g.Status())
			}
		}
		g, err := Open(t.Context(), dial, path, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), dial, path, Options{}); !errors.Is(err, hapax.ErrStoreLocked) {
			t.Errorf("opened twice: %v", err)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		w, err := OpenFile(want)
		if err != nil {
			t.Fatalf("the witness in %s was not closed, or stands elsewhere: %v", want, err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A store that counts how often it was closed.
type closes struct {
	*memstore.Store
	closed *atomic.Int32
}

func (c closes) Close() error { c.closed.Add(1); return c.Store.Close() }

// A store that takes longer to open than the first attempt may: that ends and says why, and
// what was begun beside it is the next call's.
func TestDialsADistantStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var dials, closed atomic.Int32
		takes := 2 * time.Second
		h := newHandle(func(ctx context.Context) (driver.Store, error) {
			dials.Add(1)
			select {
			case <-time.After(takes):
				return closes{memstore.New(), &closed}, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}, false)
		h.clock = func() time.Duration { return time.Since(began) }
		if _, err := h.get(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != firstDial {
			t.Fatalf("the first call ends after %v: %v", time.Since(began), err)
		}
		s, err := h.get(t.Context())
		if want := firstDial/2 + takes; err != nil || time.Since(began) != want || dials.Load() != 2 {
			t.Fatalf("the second call ends after %v, with %d attempts: %v; want %v and two", time.Since(began), dials.Load(), err, want)
		}
		h.drop(s)
		if _, err := h.get(t.Context()); err != nil || dials.Load() != 3 {
			t.Errorf("%d attempts: %v; want one more", dials.Load(), err)
		}
		if err := h.close(); err != nil || closed.Load() != 2 {
			t.Errorf("closed %d stores, %v; want both", closed.Load(), err)
		}

		again := newHandle(h.open, false) // closed while the second attempt goes on
		again.clock = h.clock
		if _, err := again.get(t.Context()); err == nil {
			t.Error("the first call brings a store")
		}
		if err := again.close(); err != nil {
			t.Error(err)
		}
		if _, err := again.get(t.Context()); !errors.Is(err, hapax.ErrClosed) {
			t.Errorf("closed, it answers %v", err)
		}
	})
}

// A clock of a machine that was asleep.
type drowsy struct{ asleep time.Duration }

func (drowsy) Now() (time.Time, time.Duration) { return time.Time{}, time.Minute }

func (d drowsy) Asleep() time.Duration { return d.asleep }

// The others go on while this machine is asleep, so that time counts, too.
func TestClockCountsSleep(t *testing.T) {
	if got := withSleep(drowsy{time.Hour}); got != time.Hour+time.Minute {
		t.Errorf("a minute after its start, of a machine that was asleep for an hour: %v", got)
	}
}

// A first attempt that hangs keeps no caller from the answer to the one beside it, and is closed where it is
// answered after all.
func TestDialsBesideAnAttemptThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var dials, closed atomic.Int32
		h := newHandle(func(context.Context) (driver.Store, error) {
			if dials.Add(1) == 1 {
				time.Sleep(time.Minute) // whatever its context says
			} else {
				time.Sleep(100 * time.Millisecond)
			}
			return closes{memstore.New(), &closed}, nil
		}, false)
		h.clock = func() time.Duration { return time.Since(began) }
		if _, err := h.get(t.Context()); err != nil || time.Since(began) != firstDial/2+100*time.Millisecond || dials.Load() != 2 {
			t.Errorf("%v after %v, with %d attempts", err, time.Since(began), dials.Load())
		}
		if err := h.close(); err != nil || closed.Load() != 2 {
			t.Errorf("closed %d stores, %v; want both", closed.Load(), err)
		}
	})
}

// An attempt that goes on ends with the caller that waits for it, or with the handle: neither dials for nobody.
func TestAttemptsEndWithTheirCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var dials, opened, closed atomic.Int32
		open := func(ctx context.Context) (driver.Store, error) {
			dials.Add(1)
			select {
			case <-time.After(2 * time.Second):
				opened.Add(1)
				return closes{memstore.New(), &closed}, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		clock := func() time.Duration { return time.Since(began) }
		h := newHandle(open, false)
		h.clock = clock
		if _, err := h.get(t.Context()); err == nil {
			t.Fatal("the first call brings a store")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := h.get(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, hapax.ErrStoreUnavailable) || dials.Load() != 2 {
			t.Errorf("a caller that goes: %v, with %d attempts; want two", err, dials.Load())
		}
		time.Sleep(5 * time.Second)
		if err := h.close(); err != nil || opened.Load() > 0 {
			t.Errorf("%d attempts have gone on without it, %v", opened.Load(), err)
		}

		h = newHandle(open, false)
		h.clock = clock
		failed := make(chan error)
		go func() { _, err := h.get(t.Context()); failed <- err }()
		time.Sleep(firstDial * 3 / 4) // both attempts go on
		closing := time.Now()
		if err := h.close(); err != nil || time.Since(closing) != firstDial/4 || opened.Load() != closed.Load() {
			t.Errorf("closed after %v, %v, with %d stores still open; want it closed with the first attempt", time.Since(closing), err, opened.Load()-closed.Load())
		}
		if err := <-failed; err == nil {
			t.Error("its caller has a store")
		}
		before := dials.Load()
		late := h.begin(t.Context(), time.Minute)
		if <-late.done; !errors.Is(late.err, hapax.ErrClosed) || dials.Load() != before {
			t.Errorf("an attempt after the end: %v, dialled %d times", late.err, dials.Load()-before)
		}
	})
}

// A store is dialled when it is needed, not again at once where that failed, anew after it was
// dropped, and closed once.
func TestDialsWhenNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, dials := time.Now(), 0
		var fails error
		s := &counted{Store: memstore.New()}
		h := newHandle(func(context.Context) (driver.Store, error) { dials++; return s, fails }, false)
		h.clock = func() time.Duration { return time.Since(began) }
		get := func(what string, want int, ok bool) {
			t.Helper()
			got, err := h.get(t.Context())
			if dials != want || (err == nil) != ok || ok && got != store(s) {
				t.Errorf("%s: dialled %d times, %v; want %d", what, dials, err, want)
			}
		}
		time.Sleep(time.Second)
		fails = errInjected
		get("at first", 1, false)
		time.Sleep(reopenEvery - 1)
		get("too soon", 1, false)
		time.Sleep(time.Nanosecond)
		fails = nil
		get("later", 2, true)
		if h.dialledAt() != h.clock() {
			t.Errorf("dialled at %v; want %v", h.dialledAt(), h.clock())
		}
		get("again", 2, true)
		h.drop(&counted{})
		h.drop(nil)
		get("another was dropped", 2, true)
		h.drop(s)
		get("it was dropped", 3, true)

		limit := time.Second // without an answer for as long as a call may take it is dropped
		hang := func(began time.Duration, ok bool) { h.answered(s, began, ok, limit) }
		hang(h.clock(), false)
		time.Sleep(limit - 1)
		hang(h.clock(), false)
		get("silent for less than a call may take", 3, true)
		hang(h.clock(), true)
		time.Sleep(limit)
		hang(h.clock(), false)
		get("answered meanwhile", 3, true)
		time.Sleep(limit)
		h.answered(&counted{}, 0, false, limit)
		get("another is silent", 3, true)
		hang(h.clock(), false)
		get("silent for as long", 4, true)
		if h.hangs {
			t.Error("the new one hangs from the beginning")
		}
		time.Sleep(time.Second)
		hang(h.clock(), true)
		hang(h.clock()-time.Millisecond, false)
		if h.hangs {
			t.Error("a call that began before the last answer has it hang")
		}
		if err := errors.Join(h.close(), h.close()); err != nil {
			t.Error(err)
		}
		if n := strings.Count(strings.Join(s.made(), " "), "close"); n != 3 {
			t.Errorf("closed %d times; want once for each that was dialled", n)
		}
		if _, err := h.get(t.Context()); !errors.Is(err, hapax.ErrClosed) || dials != 4 {
			t.Errorf("after its end: %v", err)
		}
		if err := newHandle(nil, false).close(); err != nil {
			t.Errorf("one that was never dialled: %v", err)
		}

		odd := newHandle(func(context.Context) (driver.Store, error) { return closing{s}, nil }, false)
		odd.clock = h.clock
		before := len(s.made())
		if _, err := odd.get(t.Context()); !errors.Is(err, hapax.ErrNotSupported) || len(s.made()) != before+1 {
			t.Errorf("a store without rows: %v, and closed %d times", err, len(s.made())-before)
		}
		gate := make(chan struct{})
		slow := newHandle(func(context.Context) (driver.Store, error) { <-gate; return s, nil }, false)
		slow.clock = h.clock
		done := make(chan error, 1)
		go func() { _, err := slow.get(t.Context()); done <- err }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := slow.get(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("while another dials: %v", err)
		}
		closed := make(chan error, 1)
		go func() { closed <- slow.close() }()
		synctest.Wait()
		close(gate)
		if err := errors.Join(<-closed); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, hapax.ErrClosed) {
			t.Errorf("closed while it was dialled: %v", err)
		}
	})
}

// closing is a store without rows, which is closed.
type closing struct{ driver.Store }

// What operators say of one row: the higher floor holds, with the longer lead.
func TestHigherFloorHolds(t *testing.T) {
	c := newScene(t)
	name := rowSaid + "F/r"
	say := func(said, want statement) {
		t.Helper()
		if err := c.g.say(t.Context(), c.store, name, said); err != nil {
			t.Fatal(err)
		}
		all, _, err := readStatements(t.Context(), c.store, "F")
		if got := all["r"]; err != nil || got.Floor != want.Floor || got.Ahead != want.Ahead {
			t.Errorf("after %+v it is %+v, %v; want %+v", said, all["r"], err, want)
		}
	}
	say(statement{Floor: 5, Ahead: 9}, statement{Floor: 5, Ahead: 9})
	say(statement{Floor: 5, Ahead: 11}, statement{Floor: 5, Ahead: 9})
	say(statement{Floor: 4, Ahead: 11}, statement{Floor: 5, Ahead: 9})
	say(statement{Floor: 6, Ahead: 3}, statement{Floor: 6, Ahead: 9})

	c = newScene(t)
	row := rowOf(2, "B")
	c.decided(1, func(d *decision) { d.Stated = map[string]statement{row: {Floor: 1000}} })
	for what, v := range map[string]struct {
		fence string
		row   string
		floor int64
		late  bool
	}{
		"as high": {"F", row, 1000, false}, "higher": {"F", row, 1001, true}, "about another fence": {"G", row, 1001, false}, "about another row": {"F", "x", 1001, false},
	} {
		err := inTime(t.Context(), c.store, v.fence, Statement{Floor: v.floor}, &Adoption{Stated: []Node{{Row: v.row}}})
		if (err != nil) != v.late || v.late && (!errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "at most 1000")) {
			t.Errorf("a floor %s comes too late: %v; want %v", what, err, v.late)
		}
	}
	if err := inTime(t.Context(), newScene(t).store, "F", Statement{Floor: 1}, &Adoption{Stated: []Node{{Row: row}}}); err != nil {
		t.Errorf("before any decision: %v", err)
	}
}

// A statement waits no longer than it was told to, and says what it has waited for.
func TestStatementsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		for name, v := range map[string]struct {
			state State
			row   string
			cause error
			want  bool // it has judged the store
		}{
			"it serves": {Serving, "r", nil, true}, "it is refused": {Refusing, "", nil, true}, "it joins": {Joining, "r", nil, true},
			"it cannot join": {Joining, "", errInjected, false}, "nothing is known": {Joining, "", nil, false},
		} {
			g := newScene(t).g
			g.state, g.me.row, g.cause = v.state, v.row, v.cause
			began := time.Now()
			_, err := g.awaitVerdict(ctx, time.Second)
			if (err == nil) != v.want || v.cause != nil && !errors.Is(err, v.cause) || v.want != (time.Since(began) == 0) || !v.want && time.Since(began) > 2*time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
		}
		for name, v := range map[string]struct {
			fence *Fence
			state State
			hold  bool
			want  bool
		}{
			"no fence":                    {nil, Serving, false, true},
			"none, and refused":           {nil, Refusing, false, false},
			"nobody has asked":            {&Fence{Missing: []Node{{Row: "x"}}}, Fenced, false, false},
			"one is missing":              {&Fence{Ask: "A", Missing: []Node{{Row: "x"}}}, Fenced, false, true},
			"a person decides":            {&Fence{Ask: "A", Manual: true}, Fenced, false, true},
			"all have spoken":             {&Fence{Ask: "A"}, Fenced, true, true},
			"... and nobody waits for it": {&Fence{Ask: "A"}, Fenced, false, false},
			"... under another word":      {&Fence{Ask: "B"}, Fenced, true, false},
		} {
			c := newScene(t)
			c.g.state, c.g.cause, c.g.opts.Hold, c.g.heard = v.state, hapax.ErrFenced, v.hold, "A"
			if v.fence != nil {
				c.fence(*v.fence)
			}
			f, err := c.g.awaitAccount(ctx, c.store, time.Second)
			if (err == nil) != v.want || (f != nil) != (v.want && v.fence != nil) {
				t.Errorf("%s: %v, %v", name, f, err)
			}
		}
		c := newScene(t)
		c.fence(Fence{ID: "F"})
		began := time.Now()
		err := c.g.awaitDecision(ctx, c.store, "F", Statement{Wait: time.Second}, &Adoption{Missing: []Node{{Row: "x", Name: "b"}}})
		if !errors.Is(err, hapax.ErrFenced) || !strings.Contains(err.Error(), "missing still: b") || time.Since(began) < time.Second {
			t.Errorf("while one is missing: %v after %v", err, time.Since(began))
		}
		if err := c.g.awaitDecision(ctx, c.store, "F", Statement{Wait: time.Second}, &Adoption{}); !errors.Is(err, hapax.ErrFenced) || !strings.Contains(err.Error(), "the next one that runs for some seconds does") {
			t.Errorf("while nobody acts: %v", err)
		}
		if err := c.g.awaitDecision(ctx, c.store, "G", Statement{Wait: time.Second}, &Adoption{}); err != nil {
			t.Errorf("when another fence stands: %v", err)
		}
		stopped, cancel := context.WithCancel(ctx)
		cancel()
		if err := c.g.pause(stopped, time.Hour); !errors.Is(err, context.Canceled) || !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("a pause whose caller is gone: %v", err)
		}
	})
}
