package service

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/hapax-id/hapax/store/witness"
)

// However much is wrong at once, so many alarms are up; each is raised once and cleared
// once.
func TestAlarmsAreBounded(t *testing.T) {
	var a alarms
	var hold []Condition
	for i := range 10 * maxAlarms {
		hold = append(hold, Condition{Alarm: AlarmCannot, About: fmt.Sprint(i), Detail: "it cannot"})
	}
	if raised, cleared := a.look(hold, time.Now()); len(raised) != maxAlarms || len(cleared) != 0 || len(a.list()) != maxAlarms {
		t.Errorf("%d are raised, %d cleared, %d up", len(raised), len(cleared), len(a.list()))
	}
	if raised, cleared := a.look(hold, time.Now()); len(raised)+len(cleared) != 0 {
		t.Errorf("the same again: %d are raised, %d cleared", len(raised), len(cleared))
	}
	if raised, cleared := a.look(nil, time.Now()); len(raised) != 0 || len(cleared) != maxAlarms || len(a.list()) != 0 {
		t.Errorf("when all is well: %d are raised, %d cleared, %d up", len(raised), len(cleared), len(a.list()))
	}
}

// A turnedClock is a testClock whose wall clock is turned.
type turnedClock struct {
	testClock
	by *atomic.Int64
}

func (c turnedClock) Now() (time.Time, time.Duration) {
	wall, elapsed := c.testClock.Now()
	return wall.Add(time.Duration(c.by.Load())), elapsed
}

// An alarm about two clocks says what each showed.
func TestAlarmOfSkew(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, _ *storetest.Faults) {
		s.Observe(hapax.Event{Kind: hapax.EventClockSkew, Err: fmt.Errorf("%w: here it is noon, there midnight", hapax.ErrClockSkew)})
		s.lookAround(t.Context())
		if up := s.alarms.list(); len(up) != 1 || up[0].Name != AlarmSkew || !strings.Contains(up[0].Detail, "here it is noon, there midnight") {
			t.Errorf("up are %+v", up)
		}
	})
}

// A pool raises its alarms: its last worker ID is taken, the wall clock goes back.
func TestPoolAlarms(t *testing.T) {
	clock := turnedClock{newTestClock(), new(atomic.Int64)}
	opts := Options{Pools: map[string]PoolConfig{"default": {Layout: "time:41,worker:1,sequence:12,unit=1ms,epoch=2020-01-01T00:00:00Z"}}, Clock: clock}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		check := func(when string, want ...string) {
			t.Helper()
			time.Sleep(5 * time.Minute) // until the worker IDs are counted
			mustNext(t, s, SnowflakeTag)
			var up []string
			for _, a := range s.alarms.list() {
				up = append(up, a.Name)
			}
			if !slices.Equal(up, want) {
				t.Errorf("%s: up are %v, not %v", when, up, want)
			}
		}
		mustNext(t, s, SnowflakeTag)
		check("with a worker ID left")
		other := open(t, store, opts)
		mustNext(t, other, SnowflakeTag)
		check("with none left", AlarmWorkers)
		clock.by.Store(int64(-time.Hour))
		check("with the clock an hour back", AlarmRollback, AlarmWorkers)
	})
}

// What an operator is told to do is what the guard knows to be needed, or else the command
// that looks into it; where the runbook tells of it follows from the error's code. A start that
// joins as it should is told nothing.
func TestAdvise(t *testing.T) {
	unavailable, unsafe := hapax.ErrStoreUnavailable.Code(), hapax.ErrStoreUnsafe.Code()
	for name, c := range map[string]struct {
		st           witness.Status
		see, command string
	}{
		"a start that joins":         {witness.Status{State: witness.Joining, Code: unavailable, Waits: true}, "not-joined", ""},
		"a start that takes long":    {witness.Status{State: witness.Joining, Code: unavailable, Waits: true, Trouble: true}, "not-joined", "hapax nodes"},
		"a store that is away":       {witness.Status{State: witness.Joining, Code: unavailable, Trouble: true}, "store-lost", "hapax doctor"},
		"... while numbers are left": {witness.Status{State: witness.Serving, Code: unavailable}, "store-lost", "hapax doctor"},
		"a store that is read-only":  {witness.Status{State: witness.Joining, Code: unsafe, Trouble: true}, "store-unsafe", "hapax doctor"},
		"what the guard knows":       {witness.Status{State: witness.Fenced, Code: hapax.ErrFenced.Code(), Command: "hapax nodes settle b --floor 7"}, "store-went-back", "hapax nodes settle b --floor 7"},
		"a node that serves":         {witness.Status{State: witness.Serving}, "", ""},
	} {
		see, command := Advise(c.st)
		if place := see[strings.IndexByte(see, '#')+1:]; place != c.see || command != c.command {
			t.Errorf("%s: %q, %q; want %q, %q", name, see, command, c.see, c.command)
		}
	}
}
