package witness_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// vanish has the tables of the store be gone for a machine, until they are put back: an open
// handle finds that, and none can be opened that makes no store. It returns how often one was
// made, which is in the way of the restored ones.
func (m *machine) vanish() (made *atomic.Int32, putBack func()) {
	var gone atomic.Bool
	gone.Store(true)
	made = new(atomic.Int32)
	m.link.setOpens(func() error {
		if !gone.Load() {
			return nil
		}
		if m.witness.KnowsStore() {
			return &driver.WouldChangeError{What: driver.NewStore}
		}
		made.Add(1)
		return errReplaced
	})
	m.link.set(func(string) error {
		if gone.Load() {
			return errReplaced
		}
		return nil
	}, nil)
	return made, func() { gone.Store(false) }
}

// lease takes a worker, and enters its time.
func (m *machine) lease() (hapax.Lease, error) {
	layout, err := hapax.ParseLayout("leaf")
	if err != nil {
		return hapax.Lease{}, err
	}
	ctx, cancel := context.WithTimeout(m.f.t.Context(), 3*time.Second)
	defer cancel()
	l, err := m.AcquireWorker(ctx, hapax.AcquireRequest{
		Pool: "p", Layout: layout, Holder: m.name, Workers: hapax.WorkerRange{Lo: 0, Hi: 1},
		Term: hapax.Term{Now: time.Now().AddDate(20, 0, 0), Length: time.Second, TTL: time.Millisecond},
	})
	if err == nil {
		m.f.enter(m.name, "worker", l.Grant)
	}
	return l, err
}

// A dump is put back statement by statement while the nodes run: the tables are gone for a
// while, and come back older. All refuse, nobody makes a store meanwhile, and the fleet heals by
// itself, with a segment and a worker's time granted since the dump.
func TestPutBackByStatements(t *testing.T) {
	for _, away := range []time.Duration{100 * time.Millisecond, time.Second, 4 * time.Second, 10 * time.Second} {
		t.Run(away.String(), func(t *testing.T) {
			world(t, func(t *testing.T, f *fleet) {
				a, b, c := f.start("a"), f.start("b"), f.start("c")
				all := []*machine{a, b, c}
				f.serve(12*time.Second, all...)
				if _, err := b.lease(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				dump := f.store.Snapshot()
				b.must("t", 1000)
				if _, err := b.lease(); err != nil {
					t.Fatal(err)
				}
				var makes []*atomic.Int32
				var backs []func()
				for _, m := range all {
					made, putBack := m.vanish()
					makes, backs = append(makes, made), append(backs, putBack)
				}
				for range 10 { // under load
					_ = a.take("t", 10)
					time.Sleep(away / 10)
				}
				f.store.Restore(dump)
				for _, putBack := range backs {
					putBack()
				}
				for i, m := range all {
					m.within(30 * time.Second)
					if n := makes[i].Load(); n > 0 {
						t.Errorf("%s has made a store %d times", m.name, n)
					}
				}
				time.Sleep(2 * time.Second)
				if _, err := a.lease(); err != nil {
					t.Error(err)
				}
				if a.row(t, "decision") == nil {
					t.Error("nothing was decided")
				}
			})
		})
	}
}

// row returns a row of the guard.
func (m *machine) row(t *testing.T, name string) []byte {
	t.Helper()
	return m.f.row(driver.TableGuard, name)
}

// A store that is gone for good is made anew, by a node that has refused, and not before what is
// put back had the time to come.
func TestStoreThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a, b := f.start("a"), f.start("b")
		all := []*machine{a, b}
		f.serve(12*time.Second, all...)
		time.Sleep(2 * time.Second)
		a.must("t", 1000)
		began := time.Now()
		var exists atomic.Bool
		for _, m := range all {
			m.link.set(func(string) error {
				if !exists.Load() {
					return errReplaced
				}
				return nil
			}, nil)
			m.link.setOpens(func() error {
				switch {
				case exists.Load():
				case m.witness.KnowsStore():
					return &driver.WouldChangeError{What: driver.NewStore}
				default:
					if st := m.Status().State; st != witness.Refusing {
						t.Errorf("%s makes a store while it is %s", m.name, st)
					}
					if after := time.Since(began); after < 3*wait {
						t.Errorf("%s makes a store after %v", m.name, after)
					}
					f.store.Restore(memstore.New())
					exists.Store(true)
				}
				return nil
			})
		}
		for _, m := range all {
			m.within(60 * time.Second)
		}
		f.once()
	})
}
