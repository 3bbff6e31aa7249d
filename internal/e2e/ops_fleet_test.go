package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
)

// An opsFleet is servers over one store under load: every number that they issue is
// kept, and so is every time that one of them was refused its store.
type opsFleet struct {
	t     *testing.T
	dir   string
	url   string // of the store
	args  []string
	clock string // file with the offset of everybody's clock

	web  *http.Client
	stop chan struct{} // closed to end the load
	load sync.WaitGroup

	mu      sync.Mutex // guards what follows, and the nodes' fields
	nodes   []*opsNode
	made    int // how many nodes there have been
	servers []*serving
	ids     map[string][]hapax.ID
	refused map[hapax.Code]int
	halted  bool
	paused  bool          // nobody is asked for numbers
	ages    time.Duration // what the clock file says
}

// An opsNode is a data directory with the server that runs on it.
type opsNode struct {
	name   string   // of the directory
	server *serving // nil: none runs
	last   time.Time
}

// The tags of an opsFleet: one is asked for a grant several times a second, the other
// one rarely.
const (
	opsSegment   = "orders"
	opsSnowflake = "events"
)

func newOpsFleet(t *testing.T, url string, nodes int, args ...string) *opsFleet {
	t.Helper()
	f := &opsFleet{
		t: t, dir: t.TempDir(), url: url, web: &http.Client{Timeout: patience.Call}, stop: make(chan struct{}),
		ids: map[string][]hapax.ID{}, refused: map[hapax.Code]int{},
	}
	f.clock = filepath.Join(f.dir, "clock")
	f.args = append([]string{
		"--tags", fmt.Sprintf("{%s: {step: 100, max_step: 100}, %s: {kind: snowflake}}", opsSegment, opsSnowflake),
		"--ledger", "off",
	}, args...)
	f.age(0)
	t.Cleanup(f.halt)
	t.Cleanup(f.tell)
	for range nodes {
		f.add()
	}
	for _, tag := range []string{opsSegment, opsSnowflake} {
		f.load.Go(func() { f.run(tag) })
	}
	f.awaitAll("the start")
	return f
}

// age sets everybody's clock forward.
func (f *opsFleet) age(by time.Duration) {
	f.ages += by
	if err := os.WriteFile(f.clock+".new", []byte(f.ages.String()), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(f.clock+".new", f.clock); err != nil {
		f.t.Fatal(err)
	}
}

// tell logs what the servers say of themselves when a test has failed.
func (f *opsFleet) tell() {
	if !f.t.Failed() {
		return
	}
	for _, n := range f.running() {
		resp, err := f.web.Get(n.server.url + "/readyz")
		if err != nil {
			f.t.Logf("%s: %v", n.name, err)
			continue
		}
		said, err := answer(resp)
		f.t.Logf("%s: %s%v", n.name, said, err)
	}
	for _, n := range f.running() {
		f.t.Logf("%s: %s", n.name, lastLines(n.server.logged()))
	}
}

// halt ends the load.
func (f *opsFleet) halt() {
	f.mu.Lock()
	if !f.halted {
		f.halted = true
		close(f.stop)
	}
	f.mu.Unlock()
	f.load.Wait()
}

// pause has nobody be asked for numbers, or asked again.
func (f *opsFleet) pause(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = on
}

// run asks every server in turn for numbers of a tag, until the load ends. Each request
// is on its own, so that a server that hangs holds nobody else up.
func (f *opsFleet) run(tag string) {
	var asking sync.WaitGroup
	defer asking.Wait()
	var mu sync.Mutex // guards busy
	busy := map[*opsNode]bool{}
	for {
		for _, n := range f.running() {
			mu.Lock()
			free := !busy[n]
			busy[n] = true
			mu.Unlock()
			if free {
				asking.Go(func() {
					f.ask(n, tag, 30)
					mu.Lock()
					delete(busy, n)
					mu.Unlock()
				})
			}
		}
		select {
		case <-f.stop:
			return
		case <-time.After(30 * time.Millisecond):
		}
	}
}

// ask takes numbers of a node, and keeps them.
func (f *opsFleet) ask(n *opsNode, tag string, count int) bool {
	f.mu.Lock()
	s, paused := n.server, f.paused
	f.mu.Unlock()
	if s == nil || paused {
		return false
	}
	ids, err := take(f.web, s.url, tag, count)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ids[tag] = append(f.ids[tag], ids...)
	if err != nil {
		f.refused[refused(err)]++
		return false
	}
	if tag == opsSegment {
		n.last = time.Now()
	}
	return true
}

// running returns the nodes whose servers run.
func (f *opsFleet) running() []*opsNode {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.nodes), func(n *opsNode) bool { return n.server == nil })
}

// any returns a node whose server runs; those that come later are asked for more often,
// so that all get their turn.
func (f *opsFleet) any(turn int) *opsNode {
	all := f.running()
	return all[turn%len(all)]
}

// add starts a server on a fresh directory.
func (f *opsFleet) add() *opsNode {
	f.mu.Lock()
	f.made++
	n := &opsNode{name: fmt.Sprintf("node%d", f.made)}
	f.nodes = append(f.nodes, n)
	f.mu.Unlock()
	f.start(n)
	return n
}

// start starts a node's server, without waiting until it issues.
func (f *opsFleet) start(n *opsNode, args ...string) {
	f.t.Helper()
	s := serve(f.t, f.dir, []string{"HAPAX_TEST_CLOCK_OFFSET=@" + f.clock},
		slices.Concat([]string{"--store", f.url, "--data", n.name}, f.args, args)...)
	f.mu.Lock()
	n.server = s
	f.servers = append(f.servers, s)
	f.mu.Unlock()
}

// end takes a node's server away from the load, and returns it.
func (f *opsFleet) end(n *opsNode) *serving {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := n.server
	n.server = nil
	return s
}

// kill ends a node as a power loss does.
func (f *opsFleet) kill(n *opsNode) { f.end(n).kill() }

// quit stops a node in good order.
func (f *opsFleet) quit(n *opsNode) {
	f.t.Helper()
	s := f.end(n)
	if code := s.stop(); code != 0 {
		f.t.Errorf("the exit code of %s is %d: %s", n.name, code, tail(s.logged()))
	}
}

// remove forgets a node, with its directory.
func (f *opsFleet) remove(n *opsNode) {
	f.mu.Lock()
	f.nodes = slices.DeleteFunc(f.nodes, func(m *opsNode) bool { return m == n })
	f.mu.Unlock()
	if err := os.RemoveAll(filepath.Join(f.dir, n.name)); err != nil {
		f.t.Error(err)
	}
}

// copy copies the directory of a node, as it is.
func (f *opsFleet) copy(n *opsNode) *opsNode {
	f.t.Helper()
	f.mu.Lock()
	f.made++
	c := &opsNode{name: fmt.Sprintf("node%d-copy-of-%s", f.made, n.name)}
	f.nodes = append(f.nodes, c)
	f.mu.Unlock()
	if out, err := exec.Command("cp", "-a", filepath.Join(f.dir, n.name), filepath.Join(f.dir, c.name)).CombinedOutput(); err != nil {
		f.t.Fatalf("%v: %s", err, out)
	}
	return c
}

// freeze stops a server for a time, as a paused machine does.
func (f *opsFleet) freeze(n *opsNode, during time.Duration) {
	f.mu.Lock()
	s := n.server
	f.mu.Unlock()
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := s.cmd.Process.Signal(sig); err != nil {
			f.t.Fatal(err)
		}
		if sig == syscall.SIGSTOP {
			patience.Slow(during)
		}
	}
}

// awaitAll waits until every server that runs has issued a number that it was asked for
// after now, and returns how long that took.
func (f *opsFleet) awaitAll(what string) time.Duration {
	f.t.Helper()
	return f.await(what, f.running()...)
}

func (f *opsFleet) await(what string, nodes ...*opsNode) time.Duration {
	f.t.Helper()
	began := time.Now()
	late := func() (names []string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, n := range nodes {
			if n.server != nil && !n.last.After(began) {
				names = append(names, n.name)
			}
		}
		return names
	}
	var logs []fmt.Stringer
	for _, n := range nodes {
		logs = append(logs, n.server)
	}
	patience.Await(f.t, "after "+what+" all issue; these do not", func() ([]string, error) { return late(), nil },
		func(names []string) bool { return len(names) == 0 }, logs...)
	return time.Since(began)
}

// awaitGrants waits until every server that runs was granted so many segments more.
func (f *opsFleet) awaitGrants(more float64) {
	f.t.Helper()
	granted := fmt.Sprintf(`hapax_refills_total{pool="",tag="%s"}`, opsSegment)
	for _, n := range f.running() {
		enough := n.server.metric(granted) + more
		patience.Until(f.t, fmt.Sprintf("%s is granted %v segments more", n.name, more), func() bool { return n.server.metric(granted) >= enough }, n.server)
	}
}

// awaitMarked waits until the store says of all whose servers do not run that they have
// left, or are silent.
func (f *opsFleet) awaitMarked() {
	f.t.Helper()
	patience.Await(f.t, "those that do not run are marked", func() (string, error) {
		r := run(f.t, f.dir, "nodes", "--server", f.any(0).server.url, "--json")
		if r.code != 0 {
			f.t.Fatalf("the nodes: %+v", r)
		}
		return r.out, nil // beside it the command may tell that the server joins, just after a switch
	}, func(nodes string) bool { return strings.Count(nodes, "\n") == len(f.running()) })
}

// An opsLine is a line of a server's log.
type opsLine struct {
	Time                             time.Time
	Msg, State, Code, Err, Do, Event string
}

// refusals returns what the servers have logged of a store that went back, or is
// another one, since so many lines.
func (f *opsFleet) refusals() (all []opsLine) {
	f.mu.Lock()
	servers := slices.Clone(f.servers)
	f.mu.Unlock()
	for _, s := range servers {
		for line := range strings.Lines(s.logged()) {
			var l opsLine
			if json.Unmarshal([]byte(line), &l) == nil && (l.State == "fenced" || l.State == "refusing") {
				all = append(all, l)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b opsLine) int { return a.Time.Compare(b.Time) })
	return all
}

// check ends the load and all servers, and fails the test for a number that came twice.
func (f *opsFleet) check() {
	f.t.Helper()
	f.halt()
	for _, n := range f.running() {
		f.quit(n)
	}
	for _, tag := range slices.Sorted(maps.Keys(f.ids)) {
		distinct(f.t, tag, f.ids[tag])
		f.t.Logf("%s: %d numbers", tag, len(f.ids[tag]))
	}
	f.t.Logf("requests that were refused, by code: %v", f.refused)
}

// tail returns the end of a log.
func tail(text string) string { return text[max(0, len(text)-4000):] }

// keep keeps the numbers of the segment tag that a command has printed.
func (f *opsFleet) keep(out string) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for text := range strings.FieldsSeq(out) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			f.t.Fatal(err)
		}
		f.ids[opsSegment] = append(f.ids[opsSegment], hapax.ID(n))
	}
}
