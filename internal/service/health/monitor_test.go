package health

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/service/watch"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/strategy"
)

// still is a source with these tags.
type still struct {
	tags  []Tag
	looks int // how often somebody looked at them
}

func (s *still) Tags() iter.Seq[Tag]              { s.looks++; return slices.Values(s.tags) }
func (*still) Pools() []Pool                      { return nil }
func (*still) Layout(string) hapax.Layout         { return hapax.Layout{} }
func (*still) Holders() []hapax.Lease             { return nil }
func (*still) Usage(int) []api.Usage              { return nil }
func (*still) Findings(time.Time) (_ []Condition) { return nil }

// monitorOf returns a monitor of a service over the store, and what closes that.
func monitorOf(t *testing.T, source Source, store driver.Store) (m *Monitor, closeService func()) {
	t.Helper()
	life, end := context.WithCancel(t.Context())
	m = New(Options{
		Source: source, Store: watch.New(store, nil, time.Minute, func(define.Tag) string { return "" }),
		Counters: NewCounters(nil, maps.Keys(map[hapax.EventKind]string{})), Strategies: strategy.NewRegistry(strategy.Options{}), Log: slog.New(slog.DiscardHandler),
		OneShot: true, Now: time.Now, Life: life,
		Spawn: func(f func()) bool {
			if life.Err() != nil {
				return false
			}
			go f()
			return true
		},
	})
	t.Cleanup(end)
	return m, end
}

// How long numbers last is looked at once a second, and told in between.
func TestOutlookIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &still{}
		m, _ := monitorOf(t, source, memstore.New())
		m.outlook()
		once := source.looks
		for range 3 {
			time.Sleep(outlookAge / 4)
			m.outlook()
		}
		if source.looks != once {
			t.Errorf("within a second the tags are looked at %d times, want %d", source.looks, once)
		}
		time.Sleep(outlookAge)
		if age := time.Since(m.outlook().at); age > 0 || source.looks != 2*once {
			t.Errorf("an outlook of %v ago is told; the tags were looked at %d times, want %d", age, source.looks, 2*once)
		}
	})
}

// The nearest ends are told first, and no more of them than are asked for.
func TestNearestForecasts(t *testing.T) {
	rate := func() *Rate {
		r := &Rate{Looked: time.Unix(0, 0)}
		r.look(0, time.Unix(60, 0))
		r.look(60, time.Unix(120, 0))
		return r
	}
	source := &still{}
	for _, name := range []string{"b", "c", "a"} {
		source.tags = append(source.tags, Tag{Name: name, IsSegment: true, Last: hapax.MaxMark - 1000, Rate: rate()})
	}
	source.tags = append(source.tags, Tag{Name: "soon", IsSegment: true, Last: hapax.MaxMark - 10, Rate: rate()}, Tag{Name: "unused", IsSegment: true, Rate: rate()})
	m, _ := monitorOf(t, source, memstore.New())
	var names []string
	for _, f := range m.near(shownAhead, 3) {
		names = append(names, f.Name)
	}
	if want := []string{"soon", "a", "b"}; !slices.Equal(names, want) {
		t.Errorf("the nearest are %q, want %q", names, want)
	}
}

// A node that serves with slow heartbeats says how long they take and may take.
func TestReadinessTellsSlowHeartbeats(t *testing.T) {
	m, _ := monitorOf(t, &still{tags: []Tag{{Name: "orders", IsSegment: true, Stats: hapax.SegmentStats{Remaining: 1}}}}, memstore.New())
	const slow = "a heartbeat takes 0.6 s of 1.8 s (heartbeat: 2.25s)"
	for why, want := range map[string]string{"": slow, slowly: slowly + "; " + slow} {
		r := m.issuing(witness.Status{State: witness.Serving, Slow: slow, Why: why}, nil)
		if !r.Ready || r.Degraded != (why != "") || r.Store != "ok" || r.StoreDetail != want {
			t.Errorf("got %+v; want ready, with %q", r, want)
		}
	}
}

// The monitor of a closed service says so without waiting, also where a probe came before the
// close and asks the store after it: nobody is left who would answer it.
func TestStateOfClosed(t *testing.T) {
	isClosed := func(t *testing.T, slow bool, err error) {
		t.Helper()
		if slow || !errors.Is(err, hapax.ErrClosed) {
			t.Errorf("the error is %v, slow %v; want ErrClosed", err, slow)
		}
	}
	t.Run("before the probe", func(t *testing.T) {
		m, closeService := monitorOf(t, &still{}, memstore.New())
		closeService()
		slow, err := m.state(t.Context())
		isClosed(t, slow, err)
	})
	t.Run("while the store is asked", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := storetest.NewFaults(memstore.New())
			m, closeService := monitorOf(t, &still{}, store)
			store.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Before: time.Hour} })
			if slow, err := m.state(t.Context()); !slow || err != nil {
				t.Fatalf("the error is %v, slow %v; want the store to be slow", err, slow)
			}
			closeService()
			slow, err := m.state(t.Context())
			isClosed(t, slow, err)
		})
	})
	t.Run("between the probe and its question", func(t *testing.T) {
		m, closeService := monitorOf(t, &still{}, memstore.New())
		m.mu.Lock()
		var slow bool
		var err error
		probed := make(chan struct{})
		go func() { slow, err = m.state(t.Context()); close(probed) }()
		stacks := make([]byte, 1<<20)
		patience.Until(t, "the probe is about to ask", func() bool {
			for stack := range bytes.SplitSeq(stacks[:runtime.Stack(stacks, true)], []byte("\n\n")) {
				if bytes.Contains(stack, []byte("TestStateOfClosed")) && bytes.Contains(stack, []byte("(*Monitor).ask(")) {
					return true
				}
			}
			return false
		})
		closeService()
		m.mu.Unlock()
		patience.Closed(t, "the probe's answer", probed)
		isClosed(t, slow, err)
	})
}
