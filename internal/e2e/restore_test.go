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
	"github.com/hapax-id/hapax/internal/testservers"
)

// A restored shared store, on real servers: two nodes issue, the data are copied,
// both go on, the copy is put back, and a third node joins. Nobody is granted
// anything until an operator has adopted the store; no number comes twice.
func TestRestoredStores(t *testing.T) {
	t.Parallel()
	for _, store := range sharedStores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			s := store.start(t)
			s.MustControl()
			testRestoredStore(t, s)
		})
	}
}

func testRestoredStore(t *testing.T, store *testservers.Server) {
	dir := t.TempDir()
	start := func(name string) *serving {
		return serve(t, dir, nil, "--store", store.URL, "--data", name, "--max-wait", "10s",
			"--tags", "{orders: {step: 1000, max_step: 1000}}")
	}
	var ids []hapax.ID
	a := start("a")
	ids = append(ids, takeSoon(t, a, "orders", 500)...)
	b := start("b")
	store.Stop()
	backup := filepath.Join(t.TempDir(), "copy")
	copyData(t, store.Dir, backup)
	store.Start()
	ids = append(ids, takeSoon(t, a, "orders", 3000)...)
	for range 10 {
		ids = append(ids, takeSoon(t, b, "orders", 5000)...)
	}
	distinct(t, "before the copy is put back", ids)

	store.Kill()
	copyData(t, backup, store.Dir)
	store.Start()
	c := start("c")
	nodes := map[string]*serving{"a": a, "b": b, "c": c}
	for name, n := range nodes {
		eventually(t, name+" is fenced", func() bool {
			got, _ := take(patient, n.url, "orders", 1000) // what is left of a grant is good
			ids = append(ids, got...)
			return n.metric("hapax_fenced") == 1
		})
	}
	for range 20 { // a refusal does not wear off
		for name, n := range nodes {
			got, err := take(patient, n.url, "orders", 1000)
			if ids = append(ids, got...); err == nil {
				continue
			}
			switch refused(err) {
			case hapax.ErrFenced.Code(), hapax.ErrStoreRolledBack.Code(), hapax.ErrStoreReplaced.Code():
			default:
				t.Errorf("%s refuses with %v", name, err)
			}
		}
	}
	distinct(t, "while the fence stands", ids)
	for name, n := range nodes {
		if _, err := take(patient, n.url, "orders", 1000); err == nil {
			t.Errorf("%s issues while the fence stands", name)
		}
		if ready := n.readiness(); !ready.Fenced || !ready.Degraded || ready.Ready || ready.Store == "ok" {
			t.Errorf("%s: /readyz tells %+v", name, ready)
		}
		status := run(t, dir, "status", "--server", n.url)
		if status.code == 0 || !strings.Contains(status.out, "hapax adopt") {
			t.Errorf("%s: hapax status: exit code %d, %s%s", name, status.code, status.out, status.err)
		}
	}

	const above = 50_000 // the mark in the store lies below what was used
	dry := run(t, dir, "adopt", "--server", c.url, "--dry-run", "--json")
	var raised struct {
		Tag      string
		From, To int64 `json:",string"`
	}
	line, _, _ := strings.Cut(dry.out, "\n")
	if err := json.Unmarshal([]byte(line), &raised); err != nil || dry.code != 0 || raised.Tag != "orders" || raised.From >= above || raised.To <= above {
		t.Fatalf("the dry run tells %s%s, %v", dry.out, dry.err, err)
	}
	if _, err := take(patient, a.url, "orders", 1); err == nil {
		t.Error("a issues after a dry run")
	}
	if done := run(t, dir, "adopt", "--server", b.url, "--yes"); done.code != 0 || !strings.Contains(done.err, "is adopted") {
		t.Fatalf("adopt: exit code %d, %s%s", done.code, done.out, done.err)
	}
	for name, n := range nodes {
		var got []hapax.ID
		eventually(t, name+" issues again", func() bool {
			var err error
			got, err = take(patient, n.url, "orders", 1000)
			return err == nil
		})
		if int64(got[0]) < raised.To {
			t.Errorf("%s goes on at %d, below %d", name, got[0], raised.To)
		}
		ids = append(ids, got...)
		if n.metric("hapax_fenced") != 0 || n.readiness().Fenced {
			t.Errorf("%s still counts as fenced", name)
		}
	}
	distinct(t, "after adopt", ids)
	ok(t, dir, "status", "--server", a.url)
	for name, n := range nodes {
		if code := n.stop(); code != 0 {
			t.Errorf("the exit code of %s is %d: %s", name, code, n.logged())
		}
	}
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
	Store                   string
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
