package witness_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// Broken variants of the guard's foundations, each of which the simulated worlds catch:
// a fleet stands still. What has numbers granted twice broken_test.go and the root's
// simulation have them catch.
func TestWorldsCatchBrokenGuards(t *testing.T) {
	for name, wrap := range map[string]func(*conn) driver.Store{
		"healing that raises nothing": func(c *conn) driver.Store { return lazy{c} },
		"evidence that nobody reads":  func(c *conn) driver.Store { return deaf{c} },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				for _, text := range runWorld(t, seed+1, wrap) {
					if !strings.HasPrefix(text, "twice") {
						t.Logf("world %d catches it: %.200s", seed+1, text)
						return
					}
				}
			}
			t.Error("20 worlds did not catch it")
		})
	}
}

// A process whose row never arrived has one that nobody has read: where its directory was copied, its
// disk is gone and the store goes back, the fleet heals, as the row was written as ended; else the
// fence waits for that row.
func TestHealsWithoutARowThatNeverArrived(t *testing.T) {
	for _, broken := range []bool{false, true} {
		world(t, func(t *testing.T, f *fleet) {
			a := f.start("a")
			if broken {
				f.wrap = func(c *conn) driver.Store { return silentLoser{c} }
			}
			b := f.start("b")
			f.wrap = nil
			lost := false
			b.link.set(func(op string) error {
				if op == "swap" && !lost {
					lost = true
					return errDown
				}
				return nil
			}, nil)
			f.serve(12*time.Second, a, b)
			c := f.copyOf(b, "c")
			f.serve(12*time.Second, a, c)
			b.stop()
			time.Sleep(2 * wait)
			backup := f.store.Snapshot()
			time.Sleep(1500 * time.Millisecond)
			a.must("t", 5000)
			f.store.Restore(backup)
			time.Sleep(6 * wait)
			if err := a.take("t", 10); (err != nil) != broken {
				t.Errorf("the row is left out: %v; %v, missing %v", broken, err, a.Status().Missing)
			}
		})
	}
}

// A silentLoser never writes a row as ended that is not there.
type silentLoser struct{ *conn }

func (s silentLoser) SwapRowWith(ctx context.Context, p driver.Pulse, table, name string, old, next []byte) (bool, driver.Contact, error) {
	if table == driver.TableBeats && old == nil {
		ct, err := s.Beat(ctx, p)
		return true, ct, err
	}
	return s.conn.SwapRowWith(ctx, p, table, name, old, next)
}

// A grant is made in one step with the heartbeat: else a store that went back grants what
// was granted before, until the node's next heartbeat.
func TestGrantsUnderTheHeartbeat(t *testing.T) {
	for _, broken := range []bool{false, true} {
		world(t, func(t *testing.T, f *fleet) {
			a := f.start("a")
			if broken {
				f.wrap = func(c *conn) driver.Store { return unchecked{c} }
			}
			b := f.start("b")
			f.serve(12*time.Second, a, b)
			time.Sleep(2 * time.Second)
			backup := f.store.Snapshot()
			time.Sleep(1500 * time.Millisecond)
			a.must("t", 5000)
			f.store.Restore(backup)
			_ = b.take("t", 10)
			if (len(f.twice) > 0) != broken {
				t.Errorf("without the heartbeat: %v; granted twice: %v", broken, f.twice)
			}
			f.twice = nil
		})
	}
}

// unchecked grants without a look at the heartbeat's row.
type unchecked struct{ *conn }

// met says that all is well.
func (u unchecked) met(ctx context.Context) driver.Contact {
	raw, _ := u.Store.Row(ctx, driver.TableGuard, driver.RowJoins)
	joins, _ := driver.DecodeCounter(driver.TableGuard, driver.RowJoins, raw)
	return driver.Contact{Met: true, Joins: joins}
}

func (u unchecked) AllocateAllWith(ctx context.Context, p driver.Pulse, all []driver.AllocateOf) ([]driver.Allocated, driver.Contact, error) {
	if err := u.pass(ctx, "allocate"); err != nil {
		return nil, driver.Contact{}, err
	}
	if _, err := u.Store.Beat(ctx, p); err != nil {
		return nil, driver.Contact{}, err
	}
	made := make([]driver.Allocated, len(all))
	for i, of := range all {
		made[i].Allocation, made[i].Err = u.Store.Allocate(ctx, of.Tag, of.N, of.Last)
	}
	return made, u.met(ctx), nil
}

// lazy says that it has raised a tag.
type lazy struct{ *conn }

func (l lazy) HealTag(_ context.Context, def hapax.Tag) (hapax.Tag, error) { return def, nil }

// deaf shows no evidence.
type deaf struct{ *conn }

func (d deaf) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	if table == driver.TableEvidence {
		return nil, ctx.Err()
	}
	return d.conn.ListRows(ctx, table, after, limit)
}
