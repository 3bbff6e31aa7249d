package driver_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/storetest"
)

// many grants ten numbers of each of so many tags, and returns how six of them go back.
func many(t *testing.T, s handle, n int) (all []driver.HandBackOf) {
	t.Helper()
	for i := range n {
		def, err := hapax.Tag{Name: fmt.Sprint("tag ", i)}.WithDefaults()
		must(t, err)
		_, err = s.CreateTag(t.Context(), def, hapax.CreateFirstUse)
		must(t, err)
		a, err := s.Allocate(t.Context(), def.Name, 10, "")
		must(t, err)
		all = append(all, driver.HandBackOf{Allocation: a, Next: 5})
	}
	return all
}

func pulseOf(t *testing.T, s handle) driver.Pulse {
	t.Helper()
	b := driver.Beat{Count: 1}
	_, err := s.SwapRow(t.Context(), driver.TableBeats, "n", nil, b.Encode())
	must(t, err)
	return driver.Pulse{Row: "n", Was: b, Now: driver.Beat{Count: 2}}
}

// TestManySteps: a step takes a hundred hand-backs, or as many as the service allows, and
// no row is read that this handle has written.
func TestManySteps(t *testing.T) {
	for most, steps := range map[int]int{0: 3, 30: 15} { // 100 and 50 are refused, twice, and 50 once
		m := &memory{cells: map[driver.Key]driver.Cell{}, most: most}
		s := newHandle(m)
		all, p := many(t, s, 250), pulseOf(t, s)
		m.reads, m.steps = 0, 0
		given, c, err := s.HandBackAllWith(t.Context(), p, all)
		must(t, err)
		if !c.Met || m.reads > 0 || m.steps != steps {
			t.Errorf("at most %d: the contact is %+v after %d reads and %d steps; want no read and %d steps", most, c, m.reads, m.steps, steps)
		}
		for i, h := range all {
			if tag, err := s.Tag(t.Context(), h.Tag.Name); err != nil || !given[i] || tag.Mark != 5 || tag.Token != 1 {
				t.Fatalf("at most %d: %+v, error %v, given %v; want mark 5, token 1", most, tag, err, given[i])
			}
		}
	}
}

// TestManyAmongOthers: what others have changed meanwhile keeps nothing else back, and what
// is told of a tag is told from its current row.
func TestManyAmongOthers(t *testing.T) {
	m := newMemory()
	a, b := newHandle(m), newHandle(m)
	all, p := many(t, a, 120), pulseOf(t, a)
	step := int64(7)
	for i := 0; i < len(all); i += 10 {
		switch name := all[i].Tag.Name; i % 20 {
		case 0: // granted on
			_, err := b.Allocate(t.Context(), name, 1, "")
			must(t, err)
		default: // still held
			_, err := b.UpdateTag(t.Context(), name, driver.TagUpdate{Step: &step})
			must(t, err)
		}
	}
	given, c, err := a.HandBackAllWith(t.Context(), p, all)
	must(t, err)
	if !c.Met {
		t.Errorf("the contact is %+v", c)
	}
	for i := range all {
		if want := i%20 != 0; given[i] != want {
			t.Errorf("hand-back %d: %v; want %v", i, given[i], want)
		}
	}
	given, c, err = a.HandBackAllWith(t.Context(), driver.Pulse{Row: "n", Was: p.Now, Now: driver.Beat{Count: 3}}, all)
	must(t, err)
	for i := range all {
		if given[i] {
			t.Errorf("hand-back %d was made twice", i)
		}
	}
	row, err := a.Row(t.Context(), driver.TableBeats, "n")
	must(t, err)
	if !c.Met || string(row) != string(driver.Beat{Count: 3}.Encode()) {
		t.Errorf("where nothing is held the contact is %+v and the row %s; want the beat", c, row)
	}
}

// TestManyUnknown: after a lost answer nothing that was known before is used.
func TestManyUnknown(t *testing.T) {
	m := newMemory()
	s := newHandle(m)
	all, p := many(t, s, 3), pulseOf(t, s)
	m.lose = true
	if _, c, err := s.HandBackAllWith(t.Context(), p, all); !errors.Is(err, hapax.ErrStoreUnavailable) || c.Met {
		t.Errorf("a lost answer: %+v, %v; want ErrStoreUnavailable and no contact", c, err)
	}
	m.lose, m.reads = false, 0
	given, _, err := s.HandBackAllWith(t.Context(), p, all)
	must(t, err)
	if given[0] || m.reads != 3 {
		t.Errorf("after it: %v, %d reads; want none given, each read once", given, m.reads)
	}
	if _, _, err := s.HandBackAllWith(t.Context(), p, append(all, all[0])); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("a tag that is named twice: error is %v; want ErrInvalidArgument", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.HandBackAllWith(ctx, p, all); err == nil {
		t.Error("a call whose context has ended succeeds")
	}
}

// TestRefusedForNoReason: a step that was refused although its conditions hold, as after the
// loss of a connection, is made again, and nothing is told of it.
func TestRefusedForNoReason(t *testing.T) {
	m := newMemory()
	s := newHandle(m)
	all, p := many(t, s, 3), pulseOf(t, s)
	m.spoil = 3
	if c, err := s.Beat(t.Context(), p); err != nil || !c.Met || m.spoil > 0 {
		t.Errorf("the beat: %+v, error %v", c, err)
	}
	m.spoil = 3
	if a, c, err := storetest.AllocateWith(t.Context(), s, p, "tag 0", 1, ""); err != nil || !c.Met || a.Grant != (hapax.Grant{Lo: 11, Hi: 12}) {
		t.Errorf("the grant: %+v, %+v, error %v", a, c, err)
	}
	m.spoil = 3
	given, c, err := s.HandBackAllWith(t.Context(), p, all)
	if err != nil || !c.Met || given[0] || !given[1] || !given[2] {
		t.Errorf("given back: %v, %+v, error %v; want all but the first, of which was granted on", given, c, err)
	}
}

// lockable is a memory that can lock rows first. others changes the rows that a step names
// before it is made, unless they are locked.
type lockable struct {
	*memory
	others func(*memory)
	locks  int
}

func (l *lockable) Step(ctx context.Context, step driver.Step) (driver.Result, error) {
	l.others(l.memory)
	return l.memory.Step(ctx, step)
}

func (l *lockable) StepLocked(ctx context.Context, keys []driver.Key, f func([]driver.Cell) (driver.Step, error)) (driver.Result, error) {
	l.locks++
	l.others(l.memory) // before the lock
	var step driver.Step
	for range 2 { // as after a deadlock
		cells, err := l.Get(ctx, driver.Current, keys...)
		if err == nil {
			step, err = f(cells)
		}
		if err != nil {
			return driver.Result{}, err
		}
	}
	return l.memory.Step(ctx, step)
}

// TestLockedAfterLosses: a row that is lost to others twice is locked first, also in the next
// call, and no more once nobody else wants it.
func TestLockedAfterLosses(t *testing.T) {
	m := newMemory()
	other := newHandle(m)
	def, err := hapax.Tag{Name: "t"}.WithDefaults()
	must(t, err)
	_, err = other.CreateTag(t.Context(), def, hapax.CreateFirstUse)
	must(t, err)
	taken := int64(0)
	l := &lockable{memory: m, others: func(*memory) {
		taken++
		_, err := other.Allocate(t.Context(), "t", 1, "")
		must(t, err)
	}}
	s := newHandle(l)
	p := pulseOf(t, other)
	all := []driver.AllocateOf{{Tag: "t", N: 10}, {Tag: "none", N: 1}}
	for call, want := range []struct {
		locks int
		calm  bool
	}{{1, false}, {2, false}, {3, true}, {3, true}} {
		if want.calm {
			l.others = func(*memory) {}
		}
		before := taken
		made, c, err := s.AllocateAllWith(t.Context(), p, all)
		must(t, err)
		if !c.Met || made[0].Err != nil || !errors.Is(made[1].Err, hapax.ErrTagNotFound) || made[0].Grant.Hi-made[0].Grant.Lo != 10 {
			t.Fatalf("call %d: %+v, %+v", call, made, c)
		}
		if wants := int64(1+10*call) + taken; made[0].Grant.Lo != wants {
			t.Errorf("call %d: granted from %d; want %d", call, made[0].Grant.Lo, wants)
		}
		if l.locks != want.locks {
			t.Errorf("call %d: rows were locked %d times in all, after %d losses; want %d", call, l.locks, taken-before, want.locks)
		}
	}
}

// byValue is a memory that compares values, and counts what it is asked.
type byValue struct{ *memory }

func (v byValue) Step(ctx context.Context, step driver.Step) (driver.Result, error) {
	for i, c := range step.Each {
		v.mu.Lock()
		if now := v.cellLocked(c.Key); string(now.Value) == string(c.Old.Value) {
			step.Each[i].Old = now
		}
		v.mu.Unlock()
	}
	return v.memory.Step(ctx, step)
}

// TestNewTagIsTakenForMissing: a tag that is to be made is not read before, and one that is
// there is found all the same.
func TestNewTagIsTakenForMissing(t *testing.T) {
	m := newMemory()
	open := func() *driver.Base {
		return driver.NewBase(&driver.Calls{Service: "memory"}, byValue{m}, driver.BaseOptions{ByValue: true})
	}
	def, err := hapax.Tag{Name: "t", Step: 7}.WithDefaults()
	must(t, err)
	s := open()
	_, err = s.CreateTag(t.Context(), def, hapax.CreateExplicit)
	must(t, err)
	if m.reads != 0 || m.steps != 1 {
		t.Errorf("%d reads and %d steps; want one step", m.reads, m.steps)
	}
	a, err := s.Allocate(t.Context(), "t", 0, "")
	must(t, err)
	other := def
	other.Step = 9
	for _, s := range []*driver.Base{s, open()} {
		if _, err := s.CreateTag(t.Context(), other, hapax.CreateFirstUse); !errors.Is(err, hapax.ErrTagExists) {
			t.Errorf("made again: error %v", err)
		}
	}
	_, err = open().DeleteTag(t.Context(), "t")
	must(t, err)
	if _, err := open().CreateTag(t.Context(), other, hapax.CreateFirstUse); !errors.Is(err, hapax.ErrTagDeleted) {
		t.Errorf("made again after it was deleted: error %v", err)
	}
	if tag, err := open().CreateTag(t.Context(), other, hapax.CreateExplicit); err != nil || tag.Step != 9 || tag.Mark != a.Grant.Hi {
		t.Errorf("revived: %+v, error %v; want mark %d", tag, err, a.Grant.Hi)
	}
}
