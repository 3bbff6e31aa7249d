package witness_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// delay has every round trip of a machine take so long.
func (m *machine) delay(d time.Duration) {
	m.link.mu.Lock()
	defer m.link.mu.Unlock()
	m.link.trip = d
}

// A store that has come to be far away stops nobody: who measures that its heartbeats take
// long beats less often, and its row says so.
func TestDistantStore(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		f.serve(12*time.Second, a, b)
		time.Sleep(2 * time.Second)
		for _, m := range []*machine{a, b} {
			m.delay(600 * time.Millisecond)
		}
		for range 30 {
			time.Sleep(time.Second)
			for _, m := range []*machine{a, b} {
				if st := m.Status(); st.State != witness.Serving {
					t.Fatalf("%s is %+v; want it to serve", m.name, st)
				}
			}
		}
		a.must("t", 10)
		if st := b.Status(); !strings.Contains(st.Slow, "a heartbeat takes 0.6 s of 2.0 s") {
			t.Errorf("the status says %q of heartbeats; want 0.6 s of 2.0 s", st.Slow)
		}
		for _, m := range []*machine{a, b} { // longer than a heartbeat might take before
			m.delay(1200 * time.Millisecond)
		}
		for range 30 {
			time.Sleep(time.Second)
			for _, m := range []*machine{a, b} {
				if st := m.Status(); st.State != witness.Serving {
					t.Fatalf("%s is %+v; want it to serve", m.name, st)
				}
			}
		}
		for _, m := range []*machine{a, b} {
			m.delay(600 * time.Millisecond)
		}
		f.neverFenced()
		c := f.start("c")
		c.delay(300 * time.Millisecond)
		c.within(15 * time.Second)
		for _, m := range []*machine{a, b, c} {
			m.delay(0)
		}
		time.Sleep(6 * time.Minute)
		if st := b.Status(); st.Slow != "" {
			t.Errorf("the store is near again, and the status says %q", st.Slow)
		}
	})
}

// A node whose heartbeats take long, and that beats less often, is not marked silent in the
// time that others take, and is when it has crashed.
func TestSlowNodeIsJudgedByItsOwnInterval(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		all := f.trio(nil)
		row := f.rowsOf(3)[2]
		all[2].delay(790 * time.Millisecond)
		time.Sleep(time.Minute)
		if st := all[2].Status(); st.State != witness.Serving || !strings.Contains(st.Slow, "a heartbeat takes 0.8 s of 2.4 s") {
			t.Errorf("c is %+v; want it to serve, with heartbeats of 0.8 s of 2.4 s", st)
		}
		if how := witness.HowEnded(all[0].witness, row); how != "" {
			t.Errorf("c is marked as %s; it lives", how)
		}
		all[2].crash()
		f.surveyed(row, "silent", all[:2]...)
	})
}

// One that beats so seldom that others would take it for silent, had its row not said so first.
func TestSlowNodeSaysSoFirst(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		all := f.trio(nil)
		row := f.rowsOf(3)[2]
		all[2].delay(790 * time.Millisecond)
		time.Sleep(15 * time.Second)
		all[2].delay(2 * time.Second)
		time.Sleep(40 * time.Second) // before the others survey its row again
		if st := all[2].Status(); st.State != witness.Serving || !strings.Contains(st.Slow, "a heartbeat takes 2.0 s of 6.2 s") {
			t.Errorf("c is %+v; want it to serve, with heartbeats of 2.0 s of 6.2 s", st)
		}
		for _, m := range all[:2] {
			if how := witness.HowEnded(m.witness, row); how != "" {
				t.Errorf("c is marked as %s by %s; it lives", how, m.name)
			}
		}
	})
}

// TestDistantStart: for how many answers a process waits on a store where each takes 300 ms, one after
// the other, until it is granted a number. Time is virtual: what is asked at once counts once.
func TestDistantStart(t *testing.T) {
	const trip = 300 * time.Millisecond
	world(t, func(t *testing.T, f *fleet) {
		for _, want := range []struct {
			name  string
			calls string // in their order; those of one moment are joined by +
			most  time.Duration
		}{
			// It waits for as long as a living node may take to meet the store, in which it looks for others.
			{"a", "row row id swap beat list list+list pools+tags beat beat", 13200 * time.Millisecond},
			{"b", "row row id swap beat list list+list pools+tags beat beat list+list swap id allocate", 7700 * time.Millisecond},
			{"c", "row row id swap beat list list+list pools+tags beat beat list+list swap id allocate", 7700 * time.Millisecond},
		} {
			m := f.start(want.name)
			m.delay(trip)
			var moments [][]string
			var last time.Time
			m.link.setBefore(func(op string) error { // one call at a time, but where several begin at one moment
				m.link.mu.Lock()
				defer m.link.mu.Unlock()
				if now := time.Now(); !now.Equal(last) {
					last, moments = now, append(moments, nil)
				}
				moments[len(moments)-1] = append(moments[len(moments)-1], op)
				return nil
			})
			if took := m.within(time.Minute); took > want.most {
				t.Errorf("%s is granted a number after %v; want %v at most", want.name, took, want.most)
			}
			m.link.setBefore(nil)
			var calls []string
			for _, all := range moments {
				slices.Sort(all)
				calls = append(calls, strings.Join(all, "+"))
			}
			if got := strings.Join(calls, " "); !strings.HasPrefix(got, want.calls) {
				t.Errorf("%s calls %q; want %q", want.name, got, want.calls)
			}
			time.Sleep(7 * time.Second)
		}
	})
}

// A fleet that comes to be far away, and then twice as far, keeps all its nodes while another joins:
// to read the rows of others, and to compare the used tags, costs no heartbeat its connection.
func TestDistantStoreIsJoined(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		all := f.trio(nil)
		at := func(d, lasts time.Duration, grants bool) {
			t.Helper()
			for _, m := range all {
				m.delay(d)
			}
			for began := time.Now(); time.Since(began) < lasts; {
				time.Sleep(100 * time.Millisecond)
				for _, m := range all[:3] {
					if grants {
						m.must("t", 10)
					}
					if st := m.Status(); st.State != witness.Serving {
						t.Fatalf("at %v %s is %+v; want it to serve", d, m.name, st)
					}
				}
			}
		}
		at(300*time.Millisecond, 20*time.Second, true)
		at(600*time.Millisecond, time.Minute, true)
		d := f.start("d")
		all = append(all, d)
		at(600*time.Millisecond, time.Minute, false)
		if st := d.Status(); st.State != witness.Serving {
			t.Errorf("d is %+v; want it to serve", st)
		}
	})
}

// A fleet that is so far away that a decision takes longer than a call may is healed all the same, also where its
// processes have started since and have not measured the distance.
func TestHealsFarAway(t *testing.T) {
	for _, starts := range []bool{false, true} {
		t.Logf("the processes have started since: %t", starts)
		world(t, func(t *testing.T, f *fleet) {
			nodes := []*machine{f.start("a"), f.start("b"), f.start("c")}
			for _, m := range nodes {
				m.link.setAway(450 * time.Millisecond)
			}
			f.serve(2*time.Minute, nodes...)
			time.Sleep(time.Minute)
			backup := f.store.Snapshot()
			time.Sleep(20 * time.Second)
			nodes[0].must("t", 10)
			f.store.Restore(backup)
			f.until("a fence", func() bool { return f.standing() != nil })
			time.Sleep(10 * time.Second) // all have found the loss
			for _, m := range nodes {
				if starts {
					m.crash()
					m.start()
					m.link.setAway(450 * time.Millisecond)
				}
			}
			for _, m := range nodes {
				m.within(2 * time.Minute)
			}
		})
	}
}

// A farPools store is one that is asked for the workers of each pool, over the same distance.
type farPools struct{ *conn }

func (f farPools) Workers(ctx context.Context, pool string) ([]driver.Worker, error) {
	if err := f.pass(ctx, "workers"); err != nil {
		return nil, err
	}
	return f.conn.Workers(ctx, pool)
}

// A process starts on a store of which it takes longer to read all lines than the first survey may, such a
// store is healed, and one that was not there then starts after it.
func TestLongSurveysFarAway(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		for i := range 200 {
			if _, err := f.store.CreatePool(t.Context(), fmt.Sprint("p", i), "leaf"); err != nil {
				t.Fatal(err)
			}
		}
		f.wrap = func(c *conn) driver.Store { return farPools{c} }
		a, b := f.start("a"), f.start("b")
		a.link.setAway(300 * time.Millisecond)
		b.link.setAway(300 * time.Millisecond)
		a.within(3 * time.Minute)
		b.within(3 * time.Minute)
		b.stop()
		time.Sleep(3 * time.Minute)
		backup := f.store.Snapshot()
		time.Sleep(20 * time.Second)
		a.must("t", 10)
		f.store.Restore(backup)
		f.until("a fence", func() bool { return f.standing() != nil })
		a.within(10 * time.Minute)
		b.start()
		b.link.setAway(300 * time.Millisecond)
		b.within(5 * time.Minute)
	})
}
