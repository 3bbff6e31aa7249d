package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// TestRestores: a copy of the store is put back under load. All refuse, the fleet heals
// itself, and no number comes twice; with a node missing that nobody can speak for, it
// waits for it, or for an operator.
func TestRestores(t *testing.T) {
	t.Parallel()
	s := oneAddress(t, testservers.Redis(t))
	f := newOpsFleet(t, s.url, 3, "--heartbeat", "200ms")
	f.restore(s, "two grants old", func() { f.awaitGrants(2) })
	f.lose(s, settleByReturn)
	f.lose(s, settleByFloor)
	f.check()
}

// TestRestoresSoak does that with copies of all ages on every store.
func TestRestoresSoak(t *testing.T) {
	patience.Soak(t, "copies of all ages, on every store")
	for _, store := range opsStores {
		t.Run(store.name, func(t *testing.T) {
			s := store.start(t)
			f := newOpsFleet(t, s.url, 3)
			began := time.Now()
			for _, age := range []time.Duration{time.Second, 10 * time.Second, time.Minute} {
				f.restore(s, age.String()+" old", func() { patience.Slow(age) })
			}
			f.restore(s, "an hour's grants behind", func() { f.burst(3600) })
			for _, settle := range []settling{settleByReturn, settleByFloor, settleByFile, settleByReturn, settleByFloor} {
				f.lose(s, settle)
			}
			f.check()
			t.Logf("%s: %.0f s", store.name, time.Since(began).Seconds())
		})
	}
}

// burst has the nodes be granted so many segments.
func (f *opsFleet) burst(grants int) {
	for i := range grants {
		f.ask(f.any(i), opsSegment, 100)
	}
}

// restore copies the store, lets the load go on, puts the copy back, and waits until the
// fleet has healed it.
func (f *opsFleet) restore(s *opsStore, age string, grow func()) {
	f.t.Helper()
	copied := s.copy()
	f.awaitAll("the copy")
	grow()
	began := time.Now()
	s.putBack(copied)
	started := time.Now()
	before := f.len()
	patience.Until(f.t, "every node refuses", func() bool { return f.refuseSince(began) == len(f.running()) })
	fenced := time.Since(started)
	f.awaitServing()
	f.awaitAll("the copy that was put back, " + age)
	healed := time.Since(started)
	f.t.Logf("copy %s: the store was back after %.1f s; the last node had refused %.1f s later, all issue %.1f s after the start; %d numbers meanwhile",
		age, started.Sub(began).Seconds(), max(0, fenced.Seconds()), healed.Seconds(), f.len()-before)
}

func (f *opsFleet) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.ids[opsSegment]) + len(f.ids[opsSnowflake])
}

// refuseSince counts the nodes that run and have logged since then that the store went
// back.
func (f *opsFleet) refuseSince(then time.Time) (count int) {
	for _, n := range f.running() {
		for line := range strings.Lines(n.server.logged()) {
			var l opsLine
			if json.Unmarshal([]byte(line), &l) == nil && (l.State == "fenced" || l.State == "refusing") && l.Time.After(then) {
				count++
				break
			}
		}
	}
	return count
}

// awaitServing waits until every node that runs has logged last that it serves: what is
// left of grants is issued before that, too.
func (f *opsFleet) awaitServing() {
	f.t.Helper()
	patience.Until(f.t, "every node serves", func() bool {
		for _, n := range f.running() {
			last := ""
			for line := range strings.Lines(n.server.logged()) {
				var l opsLine
				if json.Unmarshal([]byte(line), &l) == nil && l.State != "" {
					last = l.State
				}
			}
			if last != "serving" {
				return false
			}
		}
		return true
	})
}

// A settling is how a fleet gets over a node that is missing.
type settling struct {
	name   string
	settle func(f *opsFleet, gone *opsNode)
	late   bool // the node comes back after that
}

var (
	settleByReturn = settling{"it returns", func(f *opsFleet, gone *opsNode) { f.start(gone) }, false}
	settleByFloor  = settling{"hapax nodes settle with a floor", func(f *opsFleet, gone *opsNode) {
		f.settle(gone, "--floor", strconv.FormatInt(int64(f.highest())+1_000_000_000, 10))
	}, true}
	settleByFile = settling{"hapax nodes settle with its witness", func(f *opsFleet, gone *opsNode) {
		f.settle(gone, "--witness-file", filepath.Join(f.dir, gone.name, "witness"))
	}, true}
)

// settle speaks for a node that is gone.
func (f *opsFleet) settle(gone *opsNode, how ...string) {
	f.t.Helper()
	args := append([]string{"nodes", "settle", f.nameOf(gone), "--server", f.any(0).server.url}, how...)
	began := time.Now()
	for _, last := range []string{"--dry-run", "--yes"} {
		if r := speak(f.t, f.dir, append(slices.Clip(args), last)...); r.code != 0 {
			f.t.Fatalf("hapax %q %s: exit code %d, %s%s", args, last, r.code, r.out, r.err)
		}
	}
	f.t.Logf("settled after %.1f s", time.Since(began).Seconds())
}

// speak runs a command by which an operator speaks for nodes. It goes on while those that live
// have not said what they used, and takes what is recorded for done: how long the command itself
// waits for a node that acts on it is a matter of the clock.
func speak(t *testing.T, dir string, args ...string) (r result) {
	t.Helper()
	patience.Until(t, fmt.Sprintf("the nodes have spoken to %q", args), func() bool {
		r = run(t, dir, args...)
		return r.code == 0 || !strings.Contains(r.err, "; try again")
	})
	if strings.Contains(r.err, "what was said is recorded in the store and stays there") {
		r.code = 0
	}
	return r
}

// nameOf returns what operators know a node by.
func (f *opsFleet) nameOf(n *opsNode) string {
	f.t.Helper()
	host, err := os.Hostname()
	if err != nil {
		f.t.Fatal(err)
	}
	return host + ":" + filepath.Join(f.dir, n.name)
}

// refusedSoFar counts the requests that were refused.
func (f *opsFleet) refusedSoFar() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, times := range f.refused {
		n += times
	}
	return n
}

// highest is the highest number of the segment tag.
func (f *opsFleet) highest() (id hapax.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.ids[opsSegment] {
		id = max(id, n)
	}
	return id
}

// lose puts back a copy of the store while a node is dead that was granted something
// since and that nobody has heard the end of: the others name it, and go on when it was
// spoken for.
func (f *opsFleet) lose(s *opsStore, how settling) {
	f.t.Helper()
	copied := s.copy()
	f.awaitAll("the copy")
	f.awaitGrants(2)
	gone := f.any(1)
	f.kill(gone)
	s.putBack(copied)
	started := time.Now()
	name, named := f.nameOf(gone), 0.0
	patience.Until(f.t, "all name "+name, func() bool {
		for _, n := range f.running() {
			r := run(f.t, f.dir, "status", "--json", "--server", n.server.url)
			var st struct {
				State   string
				Missing []struct{ Name string }
			}
			if err := json.Unmarshal([]byte(r.out), &st); err != nil || r.code == 0 || len(st.Missing) != 1 || st.Missing[0].Name != name {
				return false
			}
		}
		named = time.Since(started).Seconds()
		return true
	})
	last, refused := f.highest(), f.refusedSoFar()
	patience.Until(f.t, "many requests are refused", func() bool { return f.refusedSoFar() > refused+50 })
	if now := f.highest(); now > last+1000 { // what is left of grants is good
		f.t.Errorf("while the fence stands the highest number grows from %d to %d", last, now)
	}
	began := time.Now()
	how.settle(f, gone)
	f.awaitAll(how.name)
	f.t.Logf("a node is missing, %s: named after %.1f s, all issue %.1f s after the start, %.1f s after that", how.name, named, time.Since(started).Seconds(), time.Since(began).Seconds())
	if how.late {
		seen := len(f.refusals())
		f.start(gone)
		f.awaitAll("its return")
		if found := f.refusals()[seen:]; len(found) > 0 {
			f.t.Errorf("the return of %s, who was spoken for, has stopped nodes: %+v", name, found)
		}
	}
}
