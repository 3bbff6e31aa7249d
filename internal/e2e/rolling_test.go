package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// Three nodes of one version, one after the other, become nodes of the next one. Clients
// get numbers all the while, and none twice.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	before := filepath.Join(t.TempDir(), "before")
	if err := build("../..", before, "-tags", "hapaxtest", "-ldflags", "-s -w -X github.com/hapax-id/hapax.stamped=0.0.9"); err != nil {
		t.Fatal(err)
	}
	rollingUpgrade(t, before, testservers.Redis(t).URL)
}

// The same from the release before, or where there is none the last commit before this
// one that builds, on each kind of store that nodes share.
func TestRollingUpgradeSoak(t *testing.T) {
	patience.Soak(t, "every store, from the release before")
	dir := t.TempDir()
	source, before := filepath.Join(dir, "source"), filepath.Join(dir, "before")
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "git", args...).CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^")
	if err != nil {
		commit = "HEAD^"
	}
	if out, err := git("worktree", "add", "--detach", source, commit); err != nil {
		t.Fatalf("the history of this checkout does not reach back one commit; clone it with --depth 2 or more: %v: %s", err, out)
	}
	defer func() {
		if out, err := git("worktree", "remove", "--force", source); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}()
	for err := build(source, before, "-tags", "hapaxtest"); err != nil; err = build(source, before, "-tags", "hapaxtest") {
		if out, back := git("-C", source, "checkout", "--detach", "HEAD^"); back != nil {
			t.Fatalf("no commit before this one builds: %v: %s", err, out)
		}
	}
	for name, url := range map[string]func(testing.TB) string{
		"redis":     func(t testing.TB) string { return testservers.Redis(t).URL },
		"postgres":  func(t testing.TB) string { return testservers.Postgres(t).URL },
		"mysql":     func(t testing.TB) string { return testservers.MariaDB(t).URL },
		"etcd":      func(t testing.TB) string { return testservers.Etcd(t).URL },
		"zookeeper": func(t testing.TB) string { return testservers.ZooKeeper(t).URL },
	} {
		t.Run(name, func(t *testing.T) { rollingUpgrade(t, before, url(t)) })
	}
}

// build builds the command from the module in a directory.
func build(module, to string, args ...string) error {
	cmd := exec.Command("go", append(append([]string{"build"}, args...), "-o", to, "./cmd/hapax")...)
	cmd.Dir = module
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

func rollingUpgrade(t *testing.T, before, url string) {
	t.Helper()
	dir := t.TempDir()
	var addresses []string
	for range 3 {
		addresses = append(addresses, freeAddress(t))
	}
	run := func(binary string, i int) *serving {
		cmd := command(context.Background(), dir, []string{"HAPAX_LAME_DUCK=300ms"}, "serve", "--log-format", "json", "--http", addresses[i],
			"--store", url, "--data", fmt.Sprint("node-", i), "--heartbeat", "500ms", "--max-wait", "10s")
		cmd.Path = binary
		return start(t, cmd)
	}
	nodes := make([]*serving, 3)
	for i := range nodes {
		nodes[i] = run(before, i)
	}
	for _, s := range nodes {
		takeSoon(t, s, "orders", 1)
	}
	var (
		over    atomic.Bool
		clients sync.WaitGroup
		orders  tally
		flakes  sync.Map
		taken   [3]atomic.Int64
	)
	for n := range 3 {
		clients.Go(func() {
			client := &http.Client{Timeout: patience.Long}
			for turn := n; !over.Load(); turn++ {
				refused := []string{}
				for try := range 3 {
					i := (turn + try) % 3
					tag := []string{"orders", "snowflake"}[turn%2]
					ids, err := take(client, "http://"+addresses[i], tag, 50)
					if err != nil {
						refused = append(refused, err.Error())
						continue
					}
					taken[i].Add(int64(len(ids)))
					for _, id := range ids {
						if tag == "orders" {
							orders.add(id, id+1)
						} else if _, twice := flakes.LoadOrStore(id, true); twice {
							t.Errorf("%d came twice", id)
						}
					}
					break
				}
				if len(refused) == 3 {
					t.Errorf("no node gives numbers: %s", refused)
				}
			}
		})
	}
	for i, s := range nodes {
		had := orders.soFar()
		patience.Until(t, "they serve side by side", func() bool { return orders.soFar() > had+500 }, s)
		if code := s.stop(); code != 0 {
			t.Errorf("node %d: the exit code is %d: %s", i, code, lastLines(s.logged()))
		}
		taken[i].Store(0)
		nodes[i] = run(binary, i)
		patience.Until(t, fmt.Sprintf("node %d gives numbers again", i), func() bool { return taken[i].Load() > 0 })
	}
	over.Store(true)
	clients.Wait()
	if len(orders.twice) > 0 || orders.count < 100 {
		t.Errorf("of %d numbers %v came twice", orders.count, orders.twice)
	}
	for _, s := range nodes {
		if !strings.Contains(s.logged(), `"version":"`+hapax.Version()+`"`) {
			t.Errorf("a node is not of this version: %s", s.logged())
		}
		s.stop()
	}
}

// Every place that tells the version tells the same one, and the commit where it has room.
func TestVersionIsTold(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	version, dir := strings.TrimSpace(string(raw)), t.TempDir()
	fields := strings.Fields(ok(t, dir, "version"))
	if len(fields) < 2 || fields[0] != "hapax" || fields[1] != version {
		t.Errorf("hapax version says %q; want %s", fields, version)
	}
	revision := ""
	if out, err := exec.CommandContext(t.Context(), "go", "version", "-m", binary).Output(); err != nil {
		t.Error(err)
	} else if _, rest, found := strings.Cut(string(out), "vcs.revision="); found {
		revision, _, _ = strings.Cut(rest, "\n")
	}
	if revision != "" && !slices.Contains(fields, revision) {
		t.Errorf("hapax version says %q; want the commit %s", fields, revision)
	}
	s := serve(t, dir, nil)
	first, _, _ := strings.Cut(s.logged(), "\n")
	if !strings.Contains(first, `"version":"`+version+`"`) || !strings.Contains(first, `"revision":"`+revision+`"`) {
		t.Errorf("the log begins with %s; want version %s, commit %s", first, version, revision)
	}
	resp, err := http.Get(s.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if server := resp.Header.Get("Server"); server != "hapax/"+version {
		t.Errorf("the header Server is %q; want hapax/%s", server, version)
	}
	metrics, err := answer(resp)
	if err != nil || !strings.Contains(string(metrics), fmt.Sprintf(`revision="%s",version="%s"} 1`, revision, version)) {
		t.Errorf("hapax_build_info does not tell version %s, commit %s; %v", version, revision, err)
	}
	s.stop()
}
