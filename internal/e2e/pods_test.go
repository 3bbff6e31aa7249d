package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/witness"
)

// Pods crash again and again, and their disks with them: those that live have seen them
// end, and speak for them, so that a store that goes back later is healed without
// anybody's help. One that has just crashed may be settled at once; one that lives may not.
func TestCrashedPods(t *testing.T) {
	t.Parallel()
	store := testservers.Redis(t)
	store.MustControl()
	f := newCrew(t, store.URL, "a", "b")
	for range 2 {
		f.nodes["b"].kill()
		if err := os.RemoveAll(filepath.Join(f.dir, "b")); err != nil {
			t.Fatal(err)
		}
		f.start("b")
		f.ids = append(f.ids, takeSoon(t, f.nodes["b"], "orders", 1500)...)
	}
	patience.Until(t, "the others are seen to have ended", func() bool { return len(f.live("a")) == 2 && len(f.live("b")) == 2 })
	// The store says so at once; a node speaks for them once it has surveyed it.
	patience.Until(t, "both have surveyed that", func() bool { return f.ends("a") == 2 && f.ends("b") == 2 }, f)
	goBack(t, store, func() {
		for _, n := range f.nodes {
			f.ids = append(f.ids, takeSoon(t, n, "orders", 3000)...)
		}
	})
	f.awaitFence()
	f.awaitHealed("with crashed pods in the rows")

	for _, n := range f.live("a") {
		r := run(t, f.dir, "nodes", "settle", n.Row, "--server", f.nodes["a"].url, "--yes")
		if r.code == 0 || !strings.Contains(r.err, "invalid node") {
			t.Errorf("a node that lives is settled: exit code %d, %s%s", r.code, r.out, r.err)
		}
	}
	f.nodes["b"].kill()
	delete(f.nodes, "b")
	for _, n := range f.live("a") {
		if strings.HasSuffix(n.Name, filepath.Join(f.dir, "b")) {
			if r := run(t, f.dir, "nodes", "settle", n.Name, "--server", f.nodes["a"].url, "--yes"); r.code != 0 && !strings.Contains(r.err, "fallen silent") {
				t.Errorf("settle: exit code %d, %s%s", r.code, r.out, r.err)
			}
		}
	}
	if left := f.live("a"); len(left) != 1 {
		t.Errorf("after the crashed one was settled there are %+v", left)
	}
	f.start("c")
	f.awaitHealed("at the end")
	f.stop()
}

// ends returns of how many processes a node's witness knows that they have ended.
func (f *crew) ends(node string) int {
	f.t.Helper()
	said, err := witness.Read(filepath.Join(f.dir, node, "witness"))
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.Count(string(said.Encode()), `"how":"silent"`)
}

// live returns the processes that a node sees, but for those that have ended.
func (f *crew) live(at string) (all []listedNode) {
	f.t.Helper()
	for line := range strings.Lines(run(f.t, f.dir, "nodes", "--server", f.nodes[at].url, "--json").out) {
		var n listedNode
		if err := json.Unmarshal([]byte(line), &n); err != nil {
			f.t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}
