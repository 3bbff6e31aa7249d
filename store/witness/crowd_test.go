package witness_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// crowd puts the rows of processes into the store that joined it before any other: the first
// advances its row every second until the returned function is called, the others have left.
func (f *fleet) crowd(n int, name, address string) (stop func()) {
	f.t.Helper()
	swap := func(table, row string, old, value []byte) {
		if ok, err := f.store.SwapRow(f.t.Context(), table, row, old, value); err != nil || !ok {
			f.t.Fatal(table, row, ok, err)
		}
	}
	row := func(join int) string { return fmt.Sprintf("%019d-%020d", join, join) }
	beat := driver.Beat{Count: 1, Seen: int64(n)}
	for join := 1; join <= n; join++ {
		value := beat.EncodeEnded("left")
		if join == 1 {
			value = beat.Encode()
		}
		swap(driver.TableNodes, row(join), nil, fmt.Appendf(nil, `{"name":"%s%d","address":"%s","every_ms":1000,"serves":true}`, name, join, address))
		swap(driver.TableBeats, row(join), nil, value)
	}
	swap(driver.TableGuard, driver.RowJoins, nil, driver.EncodeCounter(int64(n)))
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ended:
				return
			case <-time.After(time.Second):
			}
			next := beat
			next.Count++
			if ok, err := f.store.SwapRow(f.t.Context(), driver.TableBeats, row(1), beat.Encode(), next.Encode()); err != nil || !ok {
				return // the store went back
			}
			beat = next
		}
	}()
	return func() { close(ended); <-done }
}

// However many processes and tags there are, and however much is said of each, what a node
// knows of them is heard, and the one process that cannot speak is the one that is missing.
func TestCrowd(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		stop := f.crowd(600, strings.Repeat("name", 30), strings.Repeat("address.", 32))
		for i := range 100 { // a name is short, and what a tag carries need not be
			def, err := hapax.Tag{Name: fmt.Sprintf("t%03d", i), Extra: strings.Repeat("extra…", 240)}.WithDefaults()
			if err == nil {
				_, err = f.store.CreateTag(t.Context(), def, hapax.CreateExplicit)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		a, b := f.start("a"), f.start("b")
		f.serve(20*time.Second, a, b)
		a.must("t", 10)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(1500 * time.Millisecond)
		a.must("t", 5000)
		b.must("t", 5000)
		stop()
		f.store.Restore(backup)
		f.until("who is missing", func() bool { fence := f.standing(); return fence != nil && len(fence.Missing) > 0 })
		if fence := f.standing(); len(fence.Missing) != 1 || !strings.HasSuffix(fence.Missing[0].Name, "name1") {
			t.Fatalf("missing are %v and %d more; want the first row alone", fence.Missing, fence.More)
		}
		if _, err := a.Settle(t.Context(), witness.Statement{Row: "1", Floor: 1_000_000}); err != nil {
			t.Fatal(err)
		}
		for _, m := range []*machine{a, b} {
			m.within(20 * time.Second)
		}
	})
}

// Where more are missing than a row holds, the fence names the first of them, and the list
// of nodes all; one statement speaks for all, and is told to whoever returns.
func TestCrowdIsMissing(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		f.serve(12*time.Second, a)
		time.Sleep(2 * time.Second)
		f.crowdLost(a, 400)
		f.until("who is missing", func() bool { fence := f.standing(); return fence != nil && len(fence.Missing) > 0 })
		fence := f.standing()
		if n := len(fence.Missing); n == 0 || fence.More == 0 || n+fence.More != 400 {
			t.Errorf("%d are named and %d more; want 400 in all", n, fence.More)
		}
		f.until("the status", func() bool { return strings.Contains(a.Status().Command, "lists all 400 who are missing") })
		nodes, err := a.Nodes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		missing := 0
		for _, n := range nodes {
			if n.State == "missing" {
				missing++
			}
		}
		if nodes[0].Name != "a" || nodes[0].State != "fenced" {
			t.Errorf("the first node is %+v; want a, fenced", nodes[0])
		}
		if missing != 400 {
			t.Errorf("the list of nodes has %d who are missing; want 400", missing)
		}
		ad, err := a.Adopt(t.Context(), witness.Statement{Floor: 1_000_000})
		if err != nil || len(ad.Stated) != 400 {
			t.Fatalf("stated for %d: %v", len(ad.Stated), err)
		}
		a.within(20 * time.Second)
		parts, err := f.store.ListRows(t.Context(), driver.TableGuard, "decision/", 10)
		if err != nil || len(parts) == 0 || !strings.HasPrefix(parts[0].Name, "decision/") {
			t.Errorf("the decision has %d rows besides the first, error %v; want one or more", len(parts), err)
		}
	})
}

// crowdLost has processes join, and the store lose that: a alone knows of them, by name.
func (f *fleet) crowdLost(a *machine, n int) {
	f.t.Helper()
	backup := f.store.Snapshot()
	ctx := f.t.Context()
	for join := 2; join < n+2; join++ {
		row := fmt.Sprintf("%019d-%020d", join, join)
		about := fmt.Appendf(nil, `{"name":"%s%d","every_ms":60000,"serves":true}`, strings.Repeat("name", 30), join)
		_, err1 := f.store.SwapRow(ctx, driver.TableNodes, row, nil, about)
		_, err2 := f.store.SwapRow(ctx, driver.TableBeats, row, nil, driver.Beat{Count: 1, Seen: int64(n)}.Encode())
		if err1 != nil || err2 != nil {
			f.t.Fatal(err1, err2)
		}
	}
	old := f.row(driver.TableGuard, driver.RowJoins)
	if ok, err := f.store.SwapRow(ctx, driver.TableGuard, driver.RowJoins, old, driver.EncodeCounter(int64(n)+1)); err != nil || !ok {
		f.t.Fatal(ok, err)
	}
	time.Sleep(3 * time.Second)
	a.must("t", 10)
	f.store.Restore(backup)
}

// What every node knows of each other is bounded where it is set.
func TestNamesAreBounded(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		w, err := witness.OpenFile(f.dir + "/w")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = w.Close() }()
		_, err = witness.Guard(f.store, w, witness.Options{Address: strings.Repeat("x", witness.MaxAddress+1)})
		if hapax.CodeOf(err) != hapax.ErrInvalidArgument.Code() || !strings.Contains(err.Error(), "address") || !strings.Contains(err.Error(), "256") {
			t.Errorf("an address of 257 bytes: %v; want ErrInvalidArgument that names it and the limit", err)
		}
		name, address := "a"+strings.Repeat("/ä", 10_000)+"/z", strings.Repeat("x", witness.MaxAddress)
		g, err := witness.Guard(f.store, w, witness.Options{Name: name, Address: address})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Kill()
		f.until("that it serves", func() bool { return g.Status().Ready() })
		nodes, err := g.Nodes(t.Context())
		if err != nil || len(nodes) != 1 || nodes[0].Address != address {
			t.Fatal(nodes, err)
		}
		if name := nodes[0].Name; len(name) > witness.MaxAddress || !strings.HasPrefix(name, "a/ä") || !strings.HasSuffix(name, "ä/z") || !strings.Contains(name, "…") {
			t.Errorf("the name is %q; want its beginning and its end", name)
		}
	})
}

// What keeps a node from its part in healing, and is not the way to the store, the log and
// the status tell: it is told once, and no longer where it has passed.
func TestHinderedNodeSaysSo(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		told := new(alarms)
		a := f.start("a", told.options())
		f.serve(12*time.Second, a)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(1500 * time.Millisecond)
		a.must("t", 5000)
		a.link.set(func(op string) error {
			if op == "swap" {
				return fmt.Errorf("%w: the row is too long", hapax.ErrInvalidArgument)
			}
			return nil
		}, nil)
		f.store.Restore(backup)
		f.until("that the status tells", func() bool { return strings.Contains(a.Status().Why, "cannot go on: ") })
		time.Sleep(10 * time.Second)
		if n := strings.Count(told.all(), "the row is too long"); n != 1 {
			t.Errorf("it is told %d times; want once:\n%s", n, told.all())
		}
		a.link.set(nil, nil)
		f.until("that the status tells no more", func() bool { return !strings.Contains(a.Status().Why, "cannot go on: ") })
		a.within(20 * time.Second)
	})
}

// The command that speaks for a missing node has the floor that a dry run proposes, on
// every node that refuses; and the floor is good.
func TestCommandNamesTheFloor(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b, gone := f.start("a"), f.start("b"), f.start("c")
		f.serve(15*time.Second, a, b, gone)
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(1500 * time.Millisecond)
		for _, m := range []*machine{a, b, gone} {
			m.must("t", 10)
		}
		gone.crash()
		f.store.Restore(backup)
		f.until("that it is missing", func() bool { fence := f.standing(); return fence != nil && len(fence.Missing) == 1 })
		dry, err := a.Settle(t.Context(), witness.Statement{Row: "c", Floor: 1 << 40, DryRun: true})
		if err != nil || dry.Proposed == 0 {
			t.Fatalf("proposed is %d: %v", dry.Proposed, err)
		}
		want := fmt.Sprintf("--witness-file FILE, or --floor %d, or higher", dry.Proposed)
		for _, m := range []*machine{a, b} {
			f.until("the floor", func() bool { return strings.Contains(m.Status().Command, want) })
		}
		if _, err := b.Settle(t.Context(), witness.Statement{Row: "c", Floor: dry.Proposed}); err != nil {
			t.Fatal(err)
		}
		a.within(20 * time.Second)
		b.within(20 * time.Second)
	})
}
