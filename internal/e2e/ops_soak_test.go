package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// What once stopped healthy fleets, or had numbers come twice, and the test here that
// does it to real stores:
//
//	clients that start and stop on one tag             TestPrograms
//	a node joined after the copy, and is dead          TestRestores: a node is missing
//	synchronous_standby_names on, and set again        postgres: synchronous_standby_names…, …names set again
//	a copied directory, the original restarted         directory copied…, directory put back…
//	a return after weeks, clocks fast and slow         node returns after three weeks, node with a clock…
//	the return of a node that was spoken for           TestRestores: hapax nodes settle…
//	switches of the primary, planned and not           planned switch…, …promoted, moved to another server
//	Redis with a replica, the primary restarted        redis: replica attached, primary restarted
//	crashed nodes whose disks are lost                 node killed, its disk lost, another one started
//	a witness's disk that is replaced                  witness's disk replaced
//
// An operation is something that operators do, or that happens to them. Nobody may be
// stopped by it, unless it loses what the store had acknowledged: then the servers heal
// the store, since all possible witnesses are alive or spoken for.
type operation struct {
	name  string
	loses bool
	do    func(f *opsFleet, s *opsStore, turn int)
}

// opsAway is longer than a living node takes to meet its store again.
const opsAway = 8 * time.Second

// opsWeeks is how far the clocks are set forward for those who return after weeks.
const opsWeeks = 3 * 7 * 24 * time.Hour

// nodeOperations are what happens to servers, whatever their store is.
var nodeOperations = []operation{
	{name: "node restarted", do: func(f *opsFleet, _ *opsStore, turn int) {
		n := f.any(turn)
		f.quit(n)
		f.starts("among others", n)
	}},
	{name: "node killed and started", do: func(f *opsFleet, _ *opsStore, turn int) {
		n := f.any(turn)
		f.kill(n)
		f.starts("among others, killed before", n)
	}},
	{name: "node killed, started after others marked it silent", do: func(f *opsFleet, _ *opsStore, turn int) {
		n := f.any(turn)
		f.kill(n)
		f.awaitMarked()
		f.starts("among others, after a while", n)
	}},
	{name: "all nodes killed and started", do: func(f *opsFleet, _ *opsStore, _ int) {
		all := f.running()
		for _, n := range all {
			f.kill(n)
		}
		for _, n := range all {
			f.start(n)
		}
		f.t.Logf("all at once, killed before: the last issues after %.1f s", f.awaitAll("the start").Seconds())
	}},
	{name: "all nodes stopped, one started alone", do: func(f *opsFleet, _ *opsStore, _ int) {
		all := f.running()
		for _, n := range all {
			f.quit(n)
		}
		last := all[len(all)-1]
		f.starts("alone, and left as the last", last)
		f.kill(last)
		f.starts("alone, killed before", last)
		for _, n := range all[:len(all)-1] {
			f.start(n)
		}
	}},
	{name: "rolling restart", do: func(f *opsFleet, _ *opsStore, _ int) {
		for _, n := range f.running() {
			f.quit(n)
			f.start(n)
			f.awaitAll("a restart")
		}
	}},
	{name: "scaled up by two", do: func(f *opsFleet, _ *opsStore, _ int) {
		a, b := f.add(), f.add()
		f.t.Logf("two new ones: the last issues after %.1f s", f.await("the start", a, b).Seconds())
	}},
	{name: "scaled down to three, disks removed", do: func(f *opsFleet, _ *opsStore, _ int) {
		for _, n := range f.running()[3:] {
			f.quit(n)
			f.remove(n)
		}
	}},
	{name: "node killed, its disk lost, another one started", do: func(f *opsFleet, _ *opsStore, turn int) {
		n := f.any(turn)
		f.kill(n)
		f.remove(n)
		f.add()
	}},
	{name: "directory copied, copy started beside it, original restarted", do: func(f *opsFleet, _ *opsStore, turn int) {
		n := f.any(turn)
		c := f.copy(n)
		f.start(c)
		f.awaitAll("the copy's start")
		f.quit(n)
		f.start(n)
		f.awaitAll("the original's restart")
		f.quit(c)
		f.start(c)
		f.awaitAll("the copy's restart")
		f.quit(c)
		f.remove(c)
	}},
	{name: "directory copied, original killed, both started", do: func(f *opsFleet, _ *opsStore, turn int) {
		n := f.any(turn)
		c := f.copy(n)
		patience.Slow(time.Second)
		f.kill(n)
		f.start(c)
		f.start(n)
		f.awaitAll("the start of both")
		f.kill(c)
		f.remove(c)
	}},
	{name: "directory put back to an older state", do: func(f *opsFleet, _ *opsStore, turn int) {
		n := f.any(turn)
		c := f.copy(n)
		patience.Slow(2 * time.Second)
		f.quit(n)
		f.remove(n)
		f.start(c)
	}},
	{name: "node renamed", do: func(f *opsFleet, _ *opsStore, turn int) {
		n := f.any(turn)
		f.quit(n)
		old := n.name
		f.mu.Lock()
		f.made++
		n.name = fmt.Sprintf("node%d", f.made)
		f.mu.Unlock()
		if err := os.Rename(filepath.Join(f.dir, old), filepath.Join(f.dir, n.name)); err != nil {
			f.t.Fatal(err)
		}
		f.start(n)
	}},
	{name: "witness's disk replaced", do: func(f *opsFleet, _ *opsStore, turn int) {
		n := f.any(turn)
		if turn%2 == 0 {
			f.quit(n)
		} else {
			f.kill(n)
		}
		if err := os.Remove(filepath.Join(f.dir, n.name, "witness")); err != nil {
			f.t.Fatal(err)
		}
		f.start(n)
	}},
	{name: "node frozen for 8 s", do: func(f *opsFleet, _ *opsStore, turn int) { f.freeze(f.any(turn), opsAway) }},
	{name: "all nodes frozen for 8 s", do: func(f *opsFleet, _ *opsStore, _ int) {
		done := make(chan struct{})
		all := f.running()
		for _, n := range all {
			go func() { f.freeze(n, opsAway); done <- struct{}{} }()
		}
		for range all {
			<-done
		}
	}},
	{name: "node with a clock that is an hour slow joins", do: func(f *opsFleet, _ *opsStore, _ int) { f.visit("-1h") }},
	{name: "node with a clock that is an hour fast joins", do: func(f *opsFleet, _ *opsStore, _ int) { f.visit("1h") }},
	{name: "one-shot commands", do: func(f *opsFleet, _ *opsStore, _ int) {
		for _, args := range [][]string{{"next", opsSegment}, {"next", opsSegment, "-n", "50"}, {"tags", "list"}} {
			began := time.Now()
			out := ok(f.t, f.dir, append(args, "--store", f.url)...)
			f.t.Logf("hapax %s --store: %.2f s", strings.Join(args, " "), time.Since(began).Seconds())
			if args[0] == "next" {
				f.keep(out)
			}
		}
	}},
}

// weeksLater has a node return after weeks. Where the store has a clock, that is not set
// forward, so that there are no snowflakes any more: it comes last.
var weeksLater = operation{name: "node returns after three weeks", do: func(f *opsFleet, _ *opsStore, turn int) {
	n := f.any(turn)
	f.kill(n)
	f.age(opsWeeks)
	patience.Slow(opsAway)
	f.start(n)
}}

// starts starts a node and logs how long it takes until it issues.
func (f *opsFleet) starts(how string, n *opsNode) {
	f.t.Helper()
	began := time.Now()
	f.start(n)
	f.await("the start", n)
	f.t.Logf("start %s: issues after %.1f s", how, time.Since(began).Seconds())
}

// visit has a node with another clock join, issue segments' numbers and leave again.
func (f *opsFleet) visit(offset string) {
	f.t.Helper()
	s := serve(f.t, f.dir, []string{"HAPAX_TEST_CLOCK_OFFSET=" + offset}, append([]string{"--store", f.url, "--data", "visitor"}, f.args...)...)
	ids := takeSoon(f.t, s, opsSegment, 100)
	f.mu.Lock()
	f.ids[opsSegment] = append(f.ids[opsSegment], ids...)
	f.servers = append(f.servers, s)
	f.mu.Unlock()
	if code := s.stop(); code != 0 {
		f.t.Errorf("the exit code of the visitor is %d: %s", code, tail(s.logged()))
	}
	if err := os.RemoveAll(filepath.Join(f.dir, "visitor")); err != nil {
		f.t.Error(err)
	}
}

// TestOperations: the first operations of every kind, on a store that starts fast.
func TestOperations(t *testing.T) {
	t.Parallel()
	s := oneAddress(t, testservers.Redis(t))
	f := newOpsFleet(t, s.url, 3, "--heartbeat", "200ms")
	for _, name := range []string{
		"node restarted", "node killed and started", "directory copied, copy started beside it, original restarted", "witness's disk replaced",
		"node renamed", "store killed and started", "one-shot commands",
		"planned switch to the replica", "replica that lacks heartbeats promoted",
	} {
		all := slices.Concat(nodeOperations, oneServer, redisOperations)
		f.operate(s, all[slices.IndexFunc(all, func(o operation) bool { return o.name == name })], 1)
	}
	f.check()
}

// TestOperationsSoak makes forty operations on every store, in any order.
func TestOperationsSoak(t *testing.T) {
	patience.Soak(t, "operations in any order, on every store")
	for _, store := range opsStores {
		t.Run(store.name, func(t *testing.T) {
			s := store.start(t)
			f := newOpsFleet(t, s.url, 3)
			began := time.Now()
			all := slices.Concat(nodeOperations, store.ops)
			for turn := range opsCount {
				if turn%len(all) == 0 {
					rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				}
				f.operate(s, all[turn%len(all)], turn)
			}
			for turn := range 2 {
				f.operate(s, weeksLater, turn)
			}
			f.check()
			t.Logf("%s: %d operations in %.0f s", store.name, opsCount+2, time.Since(began).Seconds())
		})
	}
}

const opsCount = 38 // and two

// operate makes one operation and waits until all issue again.
func (f *opsFleet) operate(s *opsStore, o operation, turn int) {
	f.t.Helper()
	if len(f.running()) < 3 {
		f.add()
	}
	if strings.HasPrefix(o.name, "scaled down") && len(f.running()) < 4 {
		f.add()
	}
	if o.loses {
		// When the others have noted in the store who left or was killed before, they speak
		// for it, also where the store loses what comes next.
		f.awaitMarked()
	}
	before, began := len(f.refusals()), time.Now()
	o.do(f, s, turn)
	if o.loses {
		patience.Until(f.t, "every node refuses, after "+o.name, func() bool { return f.refuseSince(began) == len(f.running()) })
		f.awaitServing()
	}
	took := f.awaitAll(o.name)
	found := f.refusals()[before:]
	f.t.Logf("%-62s %5.1f s, all issue %4.1f s later; refusals: %d", o.name, time.Since(began).Seconds(), took.Seconds(), len(found))
	if len(found) > 0 && !o.loses {
		f.t.Errorf("%s has stopped nodes that lost nothing: %+v", o.name, found)
	}
}
