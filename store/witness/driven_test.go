package witness_test

import (
	"testing"
	"time"

	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// backups are what stores are put back from.
type backups struct{ older, other *memstore.Store }

// A node is brought into each state, and what the events stand for happens to it: it goes
// where the table of states says. One that leaves has left in any case. How a decision
// ends Fenced and Refusing is what most other tests are about.
func TestStatesDriven(t *testing.T) {
	type happening func(f *fleet, a *machine, before *backups)
	states := map[witness.State]happening{
		witness.Joining: func(f *fleet, a *machine, _ *backups) {
			a.crash()
			a.start()
			time.Sleep(time.Second)
		},
		witness.Serving: func(*fleet, *machine, *backups) {},
		witness.Fenced: func(f *fleet, a *machine, _ *backups) {
			f.fence("another")
			time.Sleep(1100 * time.Millisecond)
		},
		witness.Refusing: func(f *fleet, a *machine, b *backups) {
			f.store.Restore(b.older)
			time.Sleep(1100 * time.Millisecond)
		},
		witness.Leaving: func(_ *fleet, a *machine, _ *backups) {
			a.link.set(func(string) error { time.Sleep(350 * time.Millisecond); return nil }, nil)
			go func() { _ = a.Guarded.Close() }()
		},
		witness.Left: func(_ *fleet, a *machine, _ *backups) { _ = a.Guarded.Close() },
	}
	events := map[string]struct {
		happens happening
		after   map[witness.State]witness.State
	}{
		"a fence": {
			func(f *fleet, _ *machine, _ *backups) {
				if f.standing() == nil {
					f.fence("another")
				}
			},
			map[witness.State]witness.State{witness.Joining: witness.Fenced, witness.Serving: witness.Fenced, witness.Fenced: witness.Fenced, witness.Refusing: witness.Refusing},
		},
		"the store goes back": {
			func(f *fleet, _ *machine, b *backups) { f.store.Restore(b.older.Snapshot()) },
			map[witness.State]witness.State{witness.Joining: witness.Refusing, witness.Serving: witness.Refusing, witness.Fenced: witness.Refusing, witness.Refusing: witness.Refusing},
		},
		"it is another one": {
			func(f *fleet, _ *machine, b *backups) { f.store.Restore(b.other) },
			map[witness.State]witness.State{witness.Joining: witness.Refusing, witness.Serving: witness.Refusing, witness.Fenced: witness.Refusing, witness.Refusing: witness.Refusing},
		},
		"its row is ended": {
			func(f *fleet, _ *machine, _ *backups) {
				for _, r := range f.beats() {
					beat, how, err := driver.DecodeBeat(r.Name, r.Value)
					if err != nil || how != "" {
						continue
					}
					if ok, err := f.store.SwapRow(f.t.Context(), driver.TableBeats, r.Name, r.Value, beat.EncodeEnded("silent")); !ok || err != nil {
						f.t.Error(ok, err)
					}
				}
			},
			map[witness.State]witness.State{witness.Joining: witness.Joining, witness.Serving: witness.Joining, witness.Fenced: witness.Fenced, witness.Refusing: witness.Refusing},
		},
		"another primary": {
			func(_ *fleet, a *machine, _ *backups) { a.link.setPrimary("p2") },
			map[witness.State]witness.State{witness.Joining: witness.Joining, witness.Serving: witness.Joining, witness.Fenced: witness.Fenced, witness.Refusing: witness.Refusing},
		},
		"it is closed": {
			func(_ *fleet, a *machine, _ *backups) { _ = a.Guarded.Close() },
			map[witness.State]witness.State{witness.Joining: witness.Left, witness.Serving: witness.Left, witness.Fenced: witness.Left, witness.Refusing: witness.Left},
		},
	}
	for from, bring := range states {
		for name, e := range events {
			t.Run(string(from)+"/"+name, func(t *testing.T) {
				world(t, func(t *testing.T, f *fleet) {
					other := newFleet(t)
					a := f.start("a")
					a.link.setPrimary("p1")
					f.serve(12*time.Second, a)
					before := &backups{older: f.store.Snapshot(), other: other.store}
					time.Sleep(1500 * time.Millisecond)
					a.must("t", 10)
					bring(f, a, before)
					a.link.setPrimary("p1")
					time.Sleep(300 * time.Millisecond)
					if st := a.Status().State; st != from {
						t.Fatalf("at first it is %s", st)
					}
					e.happens(f, a, before)
					want, ok := e.after[from]
					if !ok {
						want = witness.Left
					}
					for began := time.Now(); a.Status().State != want; time.Sleep(time.Millisecond) {
						if time.Since(began) > 2*time.Second {
							t.Fatalf("it is %+v; want %s", a.Status(), want)
						}
					}
					f.twice = nil
				})
			})
		}
	}
}
