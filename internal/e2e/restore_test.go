package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A restored shared store, on real servers: two nodes issue, the data are copied,
// both go on, the copy is put back, and a third node joins. All refuse it, raise its
// marks and go on, without anybody's help; no number comes twice.
func TestRestoredStores(t *testing.T) {
	t.Parallel()
	for _, store := range sharedStores {
		if !store.often() {
			continue
		}
		t.Run(store.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			s := store.start(t)
			s.MustControl()
			testRestoredStore(t, s)
		})
	}
}

// A crew is nodes in one directory over one store, and all that they have issued.
type crew struct {
	t     *testing.T
	dir   string
	args  []string
	nodes map[string]*serving
	ids   []hapax.ID
}

func newCrew(t *testing.T, url string, names ...string) *crew {
	f := &crew{t: t, dir: t.TempDir(), nodes: map[string]*serving{}}
	f.args = []string{"--store", url, "--max-wait", "10s", "--tags", "{orders: {step: 1000, max_step: 1000}}"}
	for _, name := range names {
		f.start(name)
		f.ids = append(f.ids, takeSoon(t, f.nodes[name], "orders", 100)...)
	}
	return f
}

// start starts a node with the directory of its name.
func (f *crew) start(name string) {
	f.t.Helper()
	f.nodes[name] = serve(f.t, f.dir, nil, append([]string{"--data", name}, f.args...)...)
}

// awaitFence waits until every node is, or was, granted nothing: they heal the store by themselves, one
// of them perhaps while another is looked at. What is left of a grant is good.
func (f *crew) awaitFence() {
	f.t.Helper()
	for name, n := range f.nodes {
		patience.Until(f.t, name+" is fenced", func() bool {
			f.use(name)
			return n.metric("hapax_fenced") == 1 || strings.Contains(n.logged(), "nothing is granted: the store went back")
		})
	}
}

// use takes numbers, and checks how a node refuses if it does.
func (f *crew) use(name string) error {
	f.t.Helper()
	got, err := take(patient, f.nodes[name].url, "orders", 1000)
	f.ids = append(f.ids, got...)
	if err == nil || wantsGrant(err) {
		return err
	}
	switch refused(err) {
	case hapax.ErrFenced.Code(), hapax.ErrStoreRolledBack.Code(), hapax.ErrStoreReplaced.Code():
	default:
		f.t.Errorf("%s refuses with %v", name, err)
	}
	return err
}

// awaitHealed waits until every node issues again and shows no trouble any more, and
// checks what all have issued.
func (f *crew) awaitHealed(what string) {
	f.t.Helper()
	for name, n := range f.nodes {
		patience.Until(f.t, name+" issues again", func() bool { return f.use(name) == nil }, f)
		patience.Until(f.t, name+" shows no trouble any more", func() bool {
			r := n.readiness()
			return r.Ready && !r.Degraded && !r.Fenced && r.State == "serving" && r.Store == "ok" && n.metric("hapax_fenced") == 0 &&
				run(f.t, f.dir, "status", "--server", n.url).code == 0
		}, f)
	}
	distinct(f.t, what, f.ids)
}

// String is the last lines of each node's log, for patience.
func (f *crew) String() string {
	var all strings.Builder
	for name, n := range f.nodes {
		lines := strings.SplitAfter(n.logged(), "\n")
		fmt.Fprintf(&all, "%s:\n%s", name, strings.Join(lines[max(0, len(lines)-8):], ""))
	}
	return all.String()
}

// stop stops all nodes.
func (f *crew) stop() {
	f.t.Helper()
	for name, n := range f.nodes {
		if code := n.stop(); code != 0 {
			f.t.Errorf("the exit code of %s is %d: %s", name, code, n.logged())
		}
	}
}

func testRestoredStore(t *testing.T, store *testservers.Server) {
	f := newCrew(t, store.URL, "a", "b")
	store.Stop()
	backup := filepath.Join(t.TempDir(), "copy")
	copyData(t, store.Dir, backup)
	store.Start()
	for range 10 {
		f.ids = append(f.ids, takeSoon(t, f.nodes["a"], "orders", 300)...)
		f.ids = append(f.ids, takeSoon(t, f.nodes["b"], "orders", 5000)...)
	}

	store.Kill()
	copyData(t, backup, store.Dir)
	store.Start()
	f.start("c")
	f.awaitFence()
	for _, n := range f.nodes {
		n.await("nothing is granted: the store went back")
	}
	f.awaitHealed("after the fleet has healed the store")
	f.nodes["a"].await("numbers are granted")
	healers := 0
	for _, n := range f.nodes {
		healers += strings.Count(n.logged(), "the store had gone back, and was healed")
	}
	if healers == 0 {
		t.Error("no log tells what was raised")
	}
	if r := run(t, f.dir, "adopt", "--server", f.nodes["b"].url, "--yes"); r.code != 0 || !strings.Contains(r.err, "nothing is wrong") {
		t.Errorf("adopt after it was healed: exit code %d, %s%s", r.code, r.out, r.err)
	}
	f.stop()
}

// A node that can know what was granted is dead, and nobody saw it end: the others name
// it, and issue nothing until it comes back, its witness file is given, or somebody
// states a floor.
func TestMissingNode(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *crew, string){
		"it comes back": func(t *testing.T, f *crew, _ string) { f.start("b") },
		"its witness file is given": func(t *testing.T, f *crew, row string) {
			file := filepath.Join(f.dir, "b", "witness")
			name, store := filepath.Join(f.dir, "b"), f.args[:2]
			for want, place := range map[string][]string{
				"; missing: ":                    store,
				" again, or hapax nodes settle ": append([]string{"--data", "new"}, store...),
			} {
				r := run(t, f.dir, append([]string{"tags", "create", "more"}, place...)...)
				if r.code == 0 || !strings.Contains(r.err, want) || !strings.Contains(r.err, name) {
					t.Errorf("a command with %q: %+v; want %q and %s", place, r, want, name)
				}
			}
			settle := func(args ...string) result {
				return speak(t, f.dir, append([]string{"nodes", "settle", row, "--server", f.nodes["a"].url}, args...)...)
			}
			if r := settle("--witness-file", filepath.Join(f.dir, "a", "instance"), "--yes"); r.code == 0 {
				t.Errorf("a file that is no witness is taken: %s%s", r.out, r.err)
			}
			if r := settle("--witness-file", file, "--dry-run"); r.code != 0 || !strings.Contains(r.out, "orders") {
				t.Errorf("the dry run: exit code %d, %s%s", r.code, r.out, r.err)
			}
			if r := settle("--witness-file", file, "--yes"); r.code != 0 {
				t.Errorf("settle: exit code %d, %s%s", r.code, r.out, r.err)
			}
			f.awaitHealed("after the witness file was given")
			f.start("b") // it is welcome
		},
		"a floor is stated": func(t *testing.T, f *crew, row string) {
			for _, command := range [][]string{{"adopt"}, {"nodes", "settle", row}} {
				for floor, why := range map[string]string{"": "missing and not spoken for", "5": "is known to have reached", "5o000": "want an integer", "-1": "floor"} {
					for _, yes := range []string{"--yes", "--dry-run"} {
						args := append(append([]string{}, command...), "--server", f.nodes["a"].url, yes)
						if floor != "" {
							args = append(args, "--floor="+floor)
						}
						if r := run(t, f.dir, args...); r.code == 0 || !strings.Contains(r.err, why) {
							t.Errorf("%q: exit code %d, %s%s; want %q", args, r.code, r.out, r.err, why)
						}
					}
				}
			}
			const floor = 1_000_000
			dry := speak(t, f.dir, "adopt", "--server", f.nodes["a"].url, "--floor", fmt.Sprint(floor), "--dry-run", "--json")
			var raised struct {
				Tag      string
				From, To int64 `json:",string"`
			}
			line, _, _ := strings.Cut(dry.out, "\n")
			if err := json.Unmarshal([]byte(line), &raised); err != nil || dry.code != 0 || raised.Tag != "orders" || raised.To != floor {
				t.Errorf("the dry run: exit code %d, %s%s, %v", dry.code, dry.out, dry.err, err)
			}
			if err := f.use("a"); err == nil {
				t.Error("a issues after a dry run")
			}
			if r := speak(t, f.dir, "nodes", "settle", row, "--server", f.nodes["a"].url, "--floor", fmt.Sprint(floor), "--yes"); r.code != 0 {
				t.Fatalf("settle: exit code %d, %s%s", r.code, r.out, r.err)
			}
			f.awaitHealed("after a floor was stated")
			if last := f.ids[len(f.ids)-1]; last < floor {
				t.Errorf("%d is below the floor", last)
			}
			f.start("b") // nobody is stopped by its return
			f.awaitHealed("after the missing node's return")
			if f.nodes["a"].metric("hapax_fenced") != 0 || strings.Contains(f.nodes["b"].logged(), "may have been used twice") {
				t.Errorf("the return of the missing node is told as a loss: %s", f.nodes["b"].logged())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := testservers.Redis(t)
			store.MustControl()
			f := newCrew(t, store.URL, "a", "b")
			store.Stop()
			backup := filepath.Join(t.TempDir(), "copy")
			copyData(t, store.Dir, backup)
			store.Start()
			for _, name := range []string{"a", "b"} {
				f.ids = append(f.ids, takeSoon(t, f.nodes[name], "orders", 5000)...)
			}
			store.Kill()
			f.nodes["b"].kill() // before anybody sees it silent
			delete(f.nodes, "b")
			copyData(t, backup, store.Dir)
			store.Start()
			f.awaitFence()
			row := f.awaitMissing("a", "b")
			end(t, f, row)
			f.awaitHealed("at the end")
			f.stop()
		})
	}
}

// awaitMissing waits until a node names the missing nodes, everywhere the same, and returns
// the name of its row.
func (f *crew) awaitMissing(at, who string) (row string) {
	f.t.Helper()
	n := f.nodes[at]
	name := filepath.Join(f.dir, who)
	patience.Until(f.t, "somebody is named", func() bool {
		return strings.Contains(run(f.t, f.dir, "nodes", "--server", n.url).out, "missing")
	})
	missing := missingNode(f.t, f.dir, n.url)
	if missing.State != "missing" || !strings.HasSuffix(missing.Name, name) {
		f.t.Fatalf("missing is %+v; want %s", missing, name)
	}
	r := run(f.t, f.dir, "nodes", "--server", n.url)
	if want := "hapax nodes settle " + missing.Name + " --server " + n.url; !strings.Contains(r.err, want) {
		f.t.Errorf("hapax nodes does not name the command %q: %s", want, r.err)
	}
	status := run(f.t, f.dir, "status", "--server", n.url)
	if status.code != 1 || !strings.Contains(status.out+status.err, missing.Name) || !strings.Contains(status.out, "hapax nodes settle") {
		f.t.Errorf("hapax status: exit code %d, %s%s", status.code, status.out, status.err)
	}
	if ready := n.readiness(); !ready.Fenced || !ready.Degraded || ready.Store == "ok" || !strings.Contains(ready.Command, "hapax nodes settle") {
		f.t.Errorf("/readyz tells %+v", ready)
	}
	n.await(missing.Name)
	return missing.Row
}

// A listedNode is what hapax nodes prints of a process.
type listedNode struct{ Row, Name, State string }

// missingNode returns the first process that a server names as missing.
func missingNode(t *testing.T, dir, url string) (n listedNode) {
	t.Helper()
	for line := range strings.Lines(run(t, dir, "nodes", "--server", url, "--json").out) {
		if err := json.Unmarshal([]byte(line), &n); err != nil {
			t.Fatal(err)
		}
		if n.State == "missing" {
			return n
		}
	}
	return listedNode{}
}

// copyData replaces a directory by a copy of another one, with the owners of the
// files.
func copyData(t *testing.T, from, to string) {
	t.Helper()
	if err := os.RemoveAll(to); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// readiness is what /readyz tells.
type readiness struct {
	Ready, Degraded, Fenced bool
	State, Store, Command   string
}

func (s *serving) readiness() (r readiness) {
	s.t.Helper()
	resp, err := http.Get(s.url + "/readyz")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(body, &r)
	}
	if err != nil {
		s.t.Fatal(fmt.Errorf("%s: %w", body, err))
	}
	return r
}
