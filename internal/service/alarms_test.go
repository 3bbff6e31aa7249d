package service

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/store/storetest"
)

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
		time.Sleep(2 * health.LookEvery)
		synctest.Wait()
		if up := s.Alarms(); len(up) != 1 || up[0].Name != health.AlarmSkew || !strings.Contains(up[0].Detail, "here it is noon, there midnight") {
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
			for _, a := range s.Alarms() {
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
		check("with none left", health.AlarmWorkers)
		clock.by.Store(int64(-time.Hour))
		check("with the clock an hour back", health.AlarmRollback, health.AlarmWorkers)
	})
}
