package witness_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// retire retires the fleet's store as hapax store copy does, and returns the copy.
func (f *fleet) retire() (*memstore.Store, driver.Retirement) {
	f.t.Helper()
	return f.retireFor("C", "redis://there/0")
}

// retireFor is retire for a copy with a random text of its own, to a URL.
func (f *fleet) retireFor(number, to string) (*memstore.Store, driver.Retirement) {
	f.t.Helper()
	id, err := f.store.StoreID(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	r := driver.Retirement{Copy: number, Store: id, To: to, By: "here", At: time.Now().UTC().Truncate(time.Second)}
	if ok, err := f.store.SwapRow(f.t.Context(), driver.TableFence, driver.RowFence, nil, r.Encode()); err != nil || !ok {
		f.t.Fatal(ok, err)
	}
	copied := f.store.Snapshot()
	for _, row := range []struct {
		table, name string
		old, next   []byte
	}{{driver.TableFence, driver.RowFence, r.Encode(), nil}, {driver.TableGuard, driver.RowCopied(number), nil, driver.EncodeRow(r)}} {
		if ok, err := copied.SwapRow(f.t.Context(), row.table, row.name, row.old, row.next); err != nil || !ok {
			f.t.Fatal(ok, err)
		}
	}
	return copied, r
}

// standsRetired has everything done to nodes of a retired store that could undo that, and returns what was granted,
// said wrongly or written.
func standsRetired(t *testing.T, f *fleet, wrap func(*conn) driver.Store) (wrong []string) {
	f.wrap = wrap
	a, b := f.start("a"), f.start("b")
	f.serve(20*time.Second, a, b)
	backup := f.store.Snapshot()
	b.stop()
	_, _ = f.retire()
	time.Sleep(1500 * time.Millisecond) // a beat
	before := f.store.Snapshot()
	check := func(when string, nodes ...*machine) {
		for _, m := range nodes {
			err := m.take("t", 10)
			st := m.Status()
			if !errors.Is(err, hapax.ErrStoreRetired) || !strings.Contains(err.Error(), "redis://there/0") || st.Code != hapax.ErrStoreRetired.Code() || !strings.Contains(st.Command, "redis://there/0") {
				wrong = append(wrong, fmt.Sprintf("%s, %s is told %v, and is %+v", when, m.name, err, st))
			}
		}
		if !sameRows(t, f.store, before) {
			wrong = append(wrong, when+": something was written")
		}
	}
	check("retired", a)
	for name, declare := range map[string]func(context.Context, witness.Statement) (witness.Adoption, error){"adopt": a.Adopt, "settle": a.Settle} {
		if _, err := declare(t.Context(), witness.Statement{Row: map[string]string{"settle": "b"}[name], Floor: 1 << 40}); !errors.Is(err, hapax.ErrStoreRetired) {
			wrong = append(wrong, fmt.Sprintf("%s: %v", name, err))
		}
	}
	b.start()
	c := f.start("c")
	time.Sleep(20 * time.Second)
	check("after a while", a, b, c)
	a.crash()
	a.start()
	b.stop()
	b.start()
	time.Sleep(20 * time.Second)
	check("after a restart", a, b, c)
	f.store.Restore(backup) // from before it was retired
	before = f.store.Snapshot()
	time.Sleep(30 * time.Second)
	check("in a backup from before", a, b, c)
	if _, err := a.Adopt(t.Context(), witness.Statement{}); !errors.Is(err, hapax.ErrStoreRetired) {
		wrong = append(wrong, fmt.Sprintf("adopt in a backup from before: %v", err))
	}
	check("after adopt", a, b, c)
	return append(wrong, f.twice...)
}

// A store that was copied elsewhere is used no more: no restart, no operator, no healing and no older backup undoes
// that for a node that has seen it. Guards that are broken in one of these are caught.
func TestRetired(t *testing.T) {
	for name, wrap := range map[string]func(*conn) driver.Store{
		"": nil,
		"a fence that is read without the retirement": func(c *conn) driver.Store { return unseeing{c} },
		"an operator and a restart that undo it":      func(c *conn) driver.Store { return obliging{c} },
	} {
		world(t, func(t *testing.T, f *fleet) {
			switch wrong := standsRetired(t, f, wrap); {
			case name == "" && len(wrong) > 0:
				t.Error(strings.Join(wrong, "\n"))
			case name != "" && len(wrong) == 0:
				t.Errorf("%s: not caught", name)
			case name != "":
				t.Logf("%s: %.300s", name, wrong[0])
			}
			f.twice = nil
		})
	}
}

// Nodes go on in the copy, above all that they were granted, whether they have seen that the store was retired or not,
// and nobody finds the copy behind.
func TestGoesOnInTheCopy(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b, late := f.start("a"), f.start("b"), f.start("late")
		f.serve(20*time.Second, a, b, late)
		late.stop()
		a.must("t", 1000)
		time.Sleep(1100 * time.Millisecond)
		copied, _ := f.retire()
		time.Sleep(2 * time.Second)
		a.crash()
		b.stop()
		old := f.store
		f.store = copied
		a.start()
		b.start()
		late.start()
		f.serve(30*time.Second, a, b, late)
		f.neverFenced()
		for _, m := range []*machine{a, b, late} {
			m.must("t", 100)
		}
		a.stop()
		f.store = old // by mistake
		a.start()
		time.Sleep(10 * time.Second)
		if err := a.take("t", 1); !errors.Is(err, hapax.ErrStoreRetired) {
			t.Errorf("back on the old store: %v", err)
		}
		if a.GoesOn(t.Context()) {
			t.Error("the old store goes on")
		}
		a.stop()
		f.store = copied
		a.start()
		if !a.GoesOn(t.Context()) {
			t.Error("the copy does not go on")
		}
		f.serve(30*time.Second, a)
		if !a.GoesOn(t.Context()) {
			t.Error("the copy does not go on once it is joined")
		}
	})
}

// A node that was on a retired store by mistake, and has used none, is free to use any.
func TestRetiredByMistake(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(20*time.Second, a)
		_, _ = f.retire()
		n := f.start("new")
		time.Sleep(3 * time.Second)
		if err := n.take("t", 1); !errors.Is(err, hapax.ErrStoreRetired) {
			t.Errorf("a new node: %v", err)
		}
		n.stop()
		other := newFleet(t)
		f.store = other.store
		f.used = map[string][]use{}
		n.start()
		f.serve(30*time.Second, n)
		a.crash() // it has used the retired one
		a.start()
		time.Sleep(10 * time.Second)
		if err := a.take("t", 1); !errors.Is(err, hapax.ErrStoreRetired) {
			t.Errorf("a node of the retired store, on another: %v", err)
		}
	})
}

// theFence is what an unseeing node takes a retirement for.
const theFence = `{"id":"X","node":"x","row":"","at":"2026-01-01T00:00:00Z","why":"a test","code":"store_rolled_back"}`

// unseeing reads the fence of a retired store as any other.
type unseeing struct{ *conn }

func (b unseeing) see(raw []byte) []byte {
	if driver.RetirementIn(raw) != nil {
		return []byte(theFence)
	}
	return raw
}

func (b unseeing) Beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	c, err := b.conn.Beat(ctx, p)
	c.Fence = b.see(c.Fence)
	return c, err
}

func (b unseeing) AllocateAllWith(ctx context.Context, p driver.Pulse, all []driver.AllocateOf) ([]driver.Allocated, driver.Contact, error) {
	made, c, err := b.conn.AllocateAllWith(ctx, p, all)
	c.Fence = b.see(c.Fence)
	return made, c, err
}

func (b unseeing) Row(ctx context.Context, table, name string) ([]byte, error) {
	raw, err := b.conn.Row(ctx, table, name)
	if table == driver.TableFence {
		raw = b.see(raw)
	}
	return raw, err
}

func (b unseeing) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	rows, err := b.conn.ListRows(ctx, table, after, limit)
	for i := range rows {
		if table == driver.TableFence {
			rows[i].Value = b.see(rows[i].Value)
		}
	}
	return rows, err
}

func (b unseeing) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if table == driver.TableFence && bytes.Equal(old, []byte(theFence)) {
		if raw, err := b.conn.Row(ctx, table, name); err != nil || driver.RetirementIn(raw) != nil {
			return b.conn.SwapRow(ctx, table, name, raw, next)
		}
	}
	return b.conn.SwapRow(ctx, table, name, old, next)
}

// obliging says of any store that it is the one that goes on.
type obliging struct{ *conn }

func (o obliging) Row(ctx context.Context, table, name string) ([]byte, error) {
	if table == driver.TableGuard && name == driver.RowCopied("C") {
		return []byte("{}"), ctx.Err()
	}
	return o.conn.Row(ctx, table, name)
}
