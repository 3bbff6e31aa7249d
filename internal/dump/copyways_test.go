package dump

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// begun copies until FROM is retired, or until right before.
func (r *removal) begun(retired bool) {
	r.t.Helper()
	for at := 1; ; at++ {
		if err := r.copy(killer{at: at}); !errors.Is(err, errKilled) {
			r.t.Fatalf("at %d: %v", at, err)
		}
		_, err := r.from.take(r.t.Context())
		if gone := errors.Is(err, hapax.ErrStoreRetired); gone && retired || !gone && !retired && r.to.closed != "" {
			return
		}
	}
}

var errPassword = fmt.Errorf("%w: the password is wrong", hapax.ErrStoreUnavailable)

// A copy is made anew only where the one before is not found.
func TestCopyAnewLooksForTheFirst(t *testing.T) {
	for name, c := range map[string]struct {
		change func(first *spot) error // which returns why the place cannot be looked at
		want   string                  // empty: it is made
		tells  bool
	}{
		"not finished":      {func(*spot) error { return nil }, "hapax store copy FROM to", false},
		"finished":          {func(first *spot) error { first.closed = ""; return nil }, "may be in use", false},
		"gone":              {func(first *spot) error { first.store = nil; return nil }, "", true},
		"another store":     {func(first *spot) error { *first = *filledSpot(t); return nil }, "", true},
		"in use":            {func(*spot) error { return hapax.ErrStoreLocked }, "it is in use", false},
		"cannot be reached": {func(*spot) error { return hapax.ErrStoreUnavailable }, "", true},
		"has a password":    {func(*spot) error { return errPassword }, "it answers", false},
	} {
		r := newRemoval(t)
		r.begun(true)
		first := r.to
		r.to = new(spot)
		away := c.change(first)
		told := ""
		_, err := Copy(t.Context(), r.from.place("from"), r.to.place("second"), CopyOptions{
			Anew: true,
			Tell: func(text string) { told += text },
			At:   func(url string) (Place, error) { return first.place(url), away },

			Answers: func(err error) bool { return errors.Is(err, errPassword) },
		})
		switch {
		case c.want == "" && err != nil, c.want != "" && (!errors.Is(err, hapax.ErrStoreRetired) || !strings.Contains(err.Error(), c.want) || r.to.store != nil):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		case strings.Contains(told, "cannot be found from here") != c.tells:
			t.Errorf("%s: it told %q", name, told)
		}
	}
}

// A copy that was whole is not made anew, though nobody finds it: it may be in use.
func TestCopyThatWasWhole(t *testing.T) {
	for name, begin := range map[string]func() *removal{
		"finished": func() *removal {
			r := newRemoval(t)
			if err := r.copy(killer{}); err != nil {
				t.Fatal(err)
			}
			return r
		},
		"killed when it is open": func() *removal {
			for at := 1; ; at++ {
				r := newRemoval(t)
				if err := r.copy(killer{at: at}); !errors.Is(err, errKilled) {
					t.Fatalf("at %d: %v", at, err)
				}
				if r.to.store != nil && r.to.closed == "" {
					return r
				}
			}
		},
	} {
		for _, place := range []string{"to", "second"} {
			r := begin()
			_, err := Copy(t.Context(), r.from.place("from"), new(spot).place(place), CopyOptions{
				Anew: true,
				Tell: func(string) {},
				At:   func(url string) (Place, error) { return new(spot).place(url), hapax.ErrStoreUnavailable },
			})
			if !errors.Is(err, hapax.ErrStoreRetired) || !strings.Contains(err.Error(), "may have been used") {
				t.Errorf("%s, to %s: a second store is made: %v", name, place, err)
			}
			_, err = Copy(t.Context(), r.from.place("from"), new(spot).place("second"), CopyOptions{Tell: func(string) {}})
			if !errors.Is(err, hapax.ErrStoreRetired) || strings.Contains(err.Error(), "--anew") {
				t.Errorf("%s: a second copy: %v", name, err)
			}
		}
	}
}

// Of two copies at once the one that loses says so, and that nobody needs what it has begun.
func TestCopyThatLost(t *testing.T) {
	for _, atOnce := range []bool{false, true} {
		r := newRemoval(t)
		winner := new(spot)
		win := func() {
			if _, err := Copy(context.Background(), r.from.place("from"), winner.place("winner"), CopyOptions{Tell: func(string) {}}); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		if atOnce {
			r.from.wrap = func(o *opened) Store { return &overtaken{o, func() { r.from.wrap = nil; win() }} }
			err = r.copy(killer{})
		} else {
			r.begun(false)
			win()
			err = r.copy(killer{})
		}
		if !errors.Is(err, hapax.ErrStoreRetired) || !strings.Contains(err.Error(), "copied to winner") || !strings.Contains(err.Error(), "begun in to serves nobody, and may be removed") {
			t.Errorf("at once %t: %v", atOnce, err)
		}
	}
}

// An overtaken store is copied by another copy right before it is retired.
type overtaken struct {
	*opened
	first func()
}

func (o *overtaken) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if kill := o.spot.kill; table == driver.TableFence {
		o.spot.kill = nil
		o.first()
		o.spot.kill = kill
	}
	return o.opened.SwapRow(ctx, table, name, old, next)
}

// A backup from before a copy is not copied to yet another place, which would be a second store that grants the same
// numbers: the copy again says where the store goes on.
func TestCopyOfABackup(t *testing.T) {
	r := newRemoval(t)
	backup, older := dumped(t, r.from.open(t)), new(spot)
	if err := r.copy(killer{}); err != nil {
		t.Fatal(err)
	}
	if err := load(t.Context(), older, backup, false); err != nil {
		t.Fatal(err)
	}
	_, err := Copy(t.Context(), older.place("older"), r.to.place("to"), CopyOptions{Tell: func(string) {}})
	if !errors.Is(err, hapax.ErrStoreRetired) || !strings.Contains(err.Error(), "that store is in to, and this one is from before: use it no more") || strings.Contains(err.Error(), "a place") {
		t.Errorf("a backup is copied: %v", err)
	}
}

// A copy to a store that was itself copied says where that went.
func TestCopyOfACopy(t *testing.T) {
	r := newRemoval(t)
	if err := r.copy(killer{}); err != nil {
		t.Fatal(err)
	}
	third := new(spot)
	if _, err := Copy(t.Context(), r.to.place("to"), third.place("third"), CopyOptions{Tell: func(string) {}}); err != nil {
		t.Fatal(err)
	}
	if err := r.copy(killer{}); !errors.Is(err, hapax.ErrStoreRetired) || !strings.Contains(err.Error(), "copied to third") {
		t.Errorf("the first copy again: %v", err)
	}
}

// A copy whose place somebody else has fenced says what to do.
func TestCopyUnderAnotherFence(t *testing.T) {
	for retired, want := range map[bool]string{false: "run the command again", true: "run the command again, with --anew"} {
		r := newRemoval(t)
		r.begun(retired)
		raw, err := r.to.store.Row(t.Context(), driver.TableFence, driver.RowFence)
		if err == nil {
			_, err = r.to.store.SwapRow(t.Context(), driver.TableFence, driver.RowFence, raw, []byte(`{"id":"F"}`))
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := r.copy(killer{}); err == nil || !strings.HasSuffix(err.Error(), want) || !strings.Contains(err.Error(), `"id`) {
			t.Errorf("retired %t: %v", retired, err)
		}
	}
}

// raised raises the mark of the tag by one, past all rules.
func (s *spot) raised(t *testing.T) (n int64, land func()) {
	t.Helper()
	kv, key := s.store.KV(), driver.Key{Name: theTag}
	tag, err := s.store.Tag(t.Context(), theTag)
	if err != nil {
		t.Fatal(err)
	}
	return tag.Mark, func() {
		cells, err := kv.Get(t.Context(), driver.Current, key)
		if err != nil {
			t.Fatal(err)
		}
		next := strings.Replace(string(cells[0].Value), fmt.Sprintf(`"mark":%d`, tag.Mark), fmt.Sprintf(`"mark":%d`, tag.Mark+1), 1)
		if r, err := kv.Step(t.Context(), driver.Step{Each: []driver.Change{{Key: key, Old: cells[0], Next: []byte(next)}}}); err != nil || !r.Each[0].Done {
			t.Fatalf("the write does not land: %+v, %v", r, err)
		}
	}
}

// A straggling store has a write land after it was retired, once its rows were listed so often.
type straggling struct {
	*opened
	t     *testing.T
	lists *int
}

func (s *straggling) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	raw, err := s.opened.Store.Row(ctx, driver.TableFence, driver.RowFence)
	if err == nil && driver.RetirementIn(raw) != nil {
		if *s.lists--; *s.lists == 0 {
			_, land := s.spot.raised(s.t)
			land()
		}
	}
	return s.opened.ListRows(ctx, table, after, limit)
}

// Where a step is several writes, one of them may land after the store was retired: the copy ends with
// the row as it is then, also where it was broken off meanwhile.
func TestCopyOfAStragglingWrite(t *testing.T) {
	for at, landed := 1, true; landed; at++ {
		for _, killed := range []int{0, 20, 30, 40} {
			r, lists := newRemoval(t), at
			r.from.wrap = func(o *opened) Store { return &straggling{o, t, &lists} }
			if killed > 0 {
				_ = r.copy(killer{at: killed})
			}
			r.from.kill, r.to.kill = nil, nil
			if _, err := Copy(t.Context(), r.from.place("from"), r.to.place("to"), CopyOptions{Tell: func(string) {}}); err != nil {
				t.Fatalf("at list %d, killed at %d: %v", at, killed, err)
			}
			landed = lists <= 0
			from, err := r.from.store.Tag(t.Context(), theTag)
			to, err2 := r.to.store.Tag(t.Context(), theTag)
			if err = errors.Join(err, err2); err != nil || landed && from.Mark != to.Mark && at < 10 {
				t.Errorf("at list %d, killed at %d: the mark is %d, and was %d, %v", at, killed, to.Mark, from.Mark, err)
			}
		}
	}
}

// A pending store has a step under way when it is retired, which was begun before and is done when the
// store is quiet, or else at the end.
type pending struct {
	*opened
	r     *removal
	deaf  bool // it is never waited for
	lands func()
}

func (p *pending) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if p.lands == nil && table == driver.TableFence {
		var n int64
		n, p.lands = p.spot.raised(p.r.t)
		p.r.given[n] = "from, before"
	}
	return p.opened.SwapRow(ctx, table, name, old, next)
}

// Quiet implements driver.Quieting.
func (p *pending) Quiet(context.Context) error {
	if !p.deaf {
		p.Close()
	}
	return nil
}

func (p *pending) Close() error {
	if p.lands != nil {
		p.lands()
		p.lands = func() {}
	}
	return nil
}

// A copy waits for the steps under way of a store that needs it; one that does not has numbers come twice.
func TestCopyWaitsForStepsUnderWay(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		r := newRemoval(t)
		first := true
		r.from.wrap = func(o *opened) Store {
			if !first {
				return o
			}
			first = false
			return &pending{opened: o, r: r, deaf: deaf}
		}
		if _, err := Copy(t.Context(), r.from.place("from"), r.to.place("to"), CopyOptions{Tell: func(string) {}}); err != nil {
			t.Fatal(err)
		}
		r.grants()
		if twice := len(r.wrong) > 0; twice != deaf {
			t.Errorf("deaf %t: %q", deaf, r.wrong)
		}
	}
}

var _ driver.Quieting = (*pending)(nil)
