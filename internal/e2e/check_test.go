package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/redisstore"
)

// contents returns what every file below a directory holds.
func contents(t *testing.T, dir string) map[string][32]byte {
	t.Helper()
	files := map[string][32]byte{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files[path] = sha256.Sum256(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// check returns what serve --check says, which must change nothing in dir.
func check(t *testing.T, dir string, args ...string) result {
	t.Helper()
	before := contents(t, dir)
	r := run(t, dir, append([]string{"serve", "--check", "--http", "127.0.0.1:0"}, args...)...)
	after := contents(t, dir)
	if len(before) != len(after) {
		t.Errorf("%q: there were %d files, and there are %d", args, len(before), len(after))
	}
	for path, sum := range before {
		if after[path] != sum {
			t.Errorf("%q: %s was changed", args, path)
		}
	}
	return r
}

// mustBlock fails unless serve --check names a cause, and a start is refused as well.
func mustBlock(t *testing.T, dir, part, cause string, args ...string) {
	t.Helper()
	r := check(t, dir, args...)
	told := false
	for line := range strings.Lines(r.out) {
		told = told || strings.HasPrefix(line, "blocked\t"+part+"\t") && strings.Contains(line, cause)
	}
	if r.code != 1 || !told {
		t.Errorf("%q: exit code %d, %s%s; want 1, and %s blocked: %q", args, r.code, r.out, r.err, part, cause)
	}
	mustRefuse(t, dir, args...)
}

// A watched buffer is read while it is written.
type watched struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// mustRefuse starts a server that must end by itself, or grant nothing.
func mustRefuse(t *testing.T, dir string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience.Long)
	defer cancel()
	cmd := command(ctx, dir, nil, append([]string{"serve", "--http", "127.0.0.1:0", "--log-format", "json"}, args...)...)
	var log watched
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for ; ctx.Err() == nil; patience.Again() {
			if strings.Contains(log.String(), "nothing is granted") {
				_ = cmd.Process.Kill()
				return
			}
		}
	}()
	err := cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); ctx.Err() != nil || err == nil || code > 0 && code != 1 {
		t.Errorf("%q: the start ended with %v: %s", args, err, log.String())
	}
}

// raiseFence has a server whose store went back raise the fence, and kills it.
func raiseFence(t *testing.T, dir, url string, args ...string) {
	t.Helper()
	store, err := redisstore.Open(t.Context(), url, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	cmd := command(t.Context(), dir, nil, append([]string{"serve", "--http", "127.0.0.1:0"}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	patience.Until(t, "the fence stands", func() bool {
		row, err := store.Row(t.Context(), driver.TableFence, driver.RowFence)
		return err == nil && row != nil
	})
}

// newerWitness is the first record of a witness that a newer version wrote.
var newerWitness = func() []byte {
	payload := "hapax-witness-9\t{}"
	return fmt.Appendf(nil, "%08x\t%s\n", crc32.Checksum([]byte(payload), crc32.MakeTable(crc32.Castagnoli)), payload)
}()

// What keeps a server on the embedded store from starting shows beforehand.
func TestCheckOfTheEmbeddedStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	used := filepath.Join(dir, "used")
	if r := check(t, dir, "--data", "used"); r.code != 0 || !strings.Contains(r.out, "change\tdata directory\tused does not exist") {
		t.Errorf("a new directory: exit code %d, %s%s", r.code, r.out, r.err)
	}
	ok(t, dir, "next", "orders", "--data", "used")
	if r := check(t, dir, "--data", "used"); r.code != 0 || strings.Contains(r.out, "blocked") {
		t.Errorf("one that was used: exit code %d, %s%s", r.code, r.out, r.err)
	}
	s := serve(t, dir, nil, "--data", "used")
	mustTake(t, s, "orders", 1)
	mustBlock(t, dir, "witness", "in use", "--data", "used")
	_, port, err := net.SplitHostPort(strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	mustBlock(t, dir, "address", "in use by another process", "--data", "other", "--resp", "127.0.0.1:"+port)
	s.stop()
	if r := check(t, dir, "--data", "used"); r.code != 0 || strings.Contains(r.out, "blocked") {
		t.Errorf("after the stop: exit code %d, %s%s", r.code, r.out, r.err)
	}
	for _, c := range []struct{ name, http string }{{"malformed", "here"}, {"another machine's", "192.0.2.1:8080"}} {
		r := run(t, dir, "serve", "--check", "--data", "used", "--allow-unauthenticated", "--http", c.http)
		if r.code != 2 || !strings.Contains(r.err, "invalid http") {
			t.Errorf("an address that is %s: exit code %d, %s%s", c.name, r.code, r.out, r.err)
		}
	}

	copied := filepath.Join(dir, "copied")
	copyData(t, used, copied)
	mustBlock(t, dir, "store", "copied", "--data", "copied")
	s = serve(t, dir, nil, "--data", "used")
	mustTake(t, s, "orders", 5)
	s.stop()
	before, err := os.ReadFile(filepath.Join(copied, "hapax.db"))
	if err != nil {
		t.Fatal(err)
	}
	// each in a copy of the files that are made anew
	for name, c := range map[string]struct {
		part, cause string
		spoil       func(data string) error
	}{
		"another program's": {"store", "damaged or not a store", func(data string) error {
			return os.WriteFile(filepath.Join(data, "hapax.db"), []byte("garbage"), 0o600)
		}},
		"a newer format": {"data directory", "format 9", func(data string) error {
			return os.WriteFile(filepath.Join(data, "format"), []byte("data 9\nwritten by hapax 9.1.0\n"), 0o600)
		}},
		"a newer witness":   {"witness", "hapax-witness-9", func(data string) error { return os.WriteFile(filepath.Join(data, "witness"), newerWitness, 0o600) }},
		"no instance":       {"data directory", "instance ID", func(data string) error { return os.WriteFile(filepath.Join(data, "instance"), []byte("?"), 0o600) }},
		"a file":            {"data directory", "not a directory", func(data string) error { return os.WriteFile(data+"/f", nil, 0o600) }},
		"the store is gone": {"store", "there is none", func(data string) error { return os.Remove(filepath.Join(data, "hapax.db")) }},
	} {
		t.Run(name, func(t *testing.T) {
			spoilt := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			copyData(t, used, spoilt)
			if err := c.spoil(spoilt); err != nil {
				t.Fatal(err)
			}
			if name == "a file" {
				spoilt += "/f"
			}
			mustBlock(t, dir, c.part, c.cause, "--data", spoilt)
		})
	}
	// last: the contents of before, in the file that was there all the time
	f, err := os.OpenFile(filepath.Join(used, "hapax.db"), os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.Write(before)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	mustBlock(t, dir, "store", "", "--data", "used")
}

// What keeps a server from a shared store shows beforehand.
func TestCheckOfASharedStore(t *testing.T) {
	t.Parallel()
	store, dir := testservers.Redis(t), t.TempDir()
	flags := func(data, url string, more ...string) []string {
		return append([]string{"--data", data, "--store", url, "--heartbeat", "300ms"}, more...)
	}
	s := serve(t, dir, nil, flags("a", store.URL)...)
	takeSoon(t, s, "orders", 1)
	beside := check(t, dir, flags("b", store.URL)...)
	if beside.code != 0 || !strings.Contains(beside.out, "nodes that have not said that they ended") {
		t.Errorf("beside a server: exit code %d, %s%s", beside.code, beside.out, beside.err)
	}
	s.stop()
	if r := check(t, dir, flags("a", store.URL)...); r.code != 0 || strings.Contains(r.out, "blocked") {
		t.Errorf("after the stop: exit code %d, %s%s", r.code, r.out, r.err)
	}
	mustBlock(t, dir, "store", "this directory knows the store", flags("a", store.URL+"/7")...)
	mustBlock(t, dir, "store", "cannot be reached", flags("c", "redis://127.0.0.1:1")...)
	s = serve(t, dir, nil, flags("other", store.URL+"/8")...)
	takeSoon(t, s, "snowflake", 1)
	s.stop()
	copyData(t, filepath.Join(dir, "a"), filepath.Join(dir, "a2"))
	mustBlock(t, dir, "store", "this node knows the store", flags("a2", store.URL+"/8")...)
	pools := filepath.Join(dir, "pools.yaml")
	if err := os.WriteFile(pools, []byte("pools: {default: {layout: vesta-max-peak}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustBlock(t, dir, "store", "default", flags("d", store.URL+"/8", "--config", pools)...)

	newer, err := redisstore.Open(t.Context(), store.URL+"/9", redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer newer.Close()
	if ok, err := newer.SwapRow(t.Context(), driver.TableGuard, "format", nil, []byte(`{"format":9,"by":"9.1.0"}`)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	mustBlock(t, dir, "store", "format 9, written by hapax 9.1.0", flags("f", store.URL+"/9")...)

	goBack(t, store, func() {
		s := serve(t, dir, nil, flags("a3", store.URL)...)
		takeSoon(t, s, "orders", 1)
		s.kill()
	})
	copyData(t, filepath.Join(dir, "a3"), filepath.Join(dir, "a4"))
	behind := flags("a3", store.URL, "--heal", "manual")
	mustBlock(t, dir, "store", "is behind what was used", behind...)
	raiseFence(t, dir, store.URL, behind...)
	mustBlock(t, dir, "store", "a fence stands", flags("e", store.URL)...)
	db := redis.NewClient(&redis.Options{Addr: store.Addr})
	defer db.Close()
	if err := db.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	mustBlock(t, dir, "store", "was wiped", flags("a4", store.URL)...)
}
