package zkstore

import (
	"context"
	"crypto/rand"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
)

// read returns a row that is current.
func (s *space) read(ctx context.Context, key driver.Key) (driver.Cell, error) {
	cells, err := s.Get(ctx, driver.Current, key)
	if err != nil {
		return driver.Cell{}, err
	}
	return cells[0], nil
}

// TestEscape: every name has a node name of its own that ZooKeeper takes.
func TestEscape(t *testing.T) {
	for name, want := range map[string]string{
		"orders": "orders", "a.b": "a.b", ".": "%2E", "..": "%2E.", "a/b": "a%2Fb", "a%2Fb": "a%252Fb", "é ": "%C3%A9%20", "A_b-1:@+=,": "A_b-1:@+=,",
	} {
		if got := escape(name); got != want {
			t.Errorf("%q: node %s; want %s", name, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.String(), rapid.StringOf(rapid.SampledFrom([]rune("%/.2Fa")))).Draw(t, "name")
		node := escape(name)
		if strings.ContainsAny(node, "/ \x00") || node == "." || node == ".." {
			t.Errorf("%q: node %q", name, node)
		}
		if got, err := unescape(node); err != nil || got != name {
			t.Errorf("%q: read back as %q, error %v", name, got, err)
		}
	})
	for _, node := range []string{"a b", "%2e", "%61", "a%", "%zz", "é", ".a"} {
		if name, err := unescape(node); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("node %q: name %q, error %v; want ErrStoreCorrupt", node, name, err)
		}
	}
}

// TestRenew: a node whose version has come far is replaced by a new one, and no
// grant is lost or repeated by that, whoever else writes.
func TestRenew(t *testing.T) {
	url := testservers.SharedZooKeeper(t).URL + "/" + rand.Text()
	const handles, rounds, limit = 3, 40, 4
	seen := map[hapax.Grant]bool{}
	var mu sync.Mutex // guards seen
	var wg sync.WaitGroup
	var last *Store
	for range handles {
		s, err := Open(t.Context(), url, Options{Timeout: patience.Call})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.space.renewAt = limit
		last = s
		def, err := hapax.Tag{Name: "t"}.WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.CreateTag(t.Context(), def, hapax.CreateFirstUse); err != nil && !errors.Is(err, hapax.ErrTagExists) {
			t.Fatal(err)
		}
		wg.Go(func() {
			for range rounds {
				a, err := s.Allocate(t.Context(), "t", 1, "")
				if err != nil {
					t.Error(err)
					return
				}
				cell, err := s.space.read(t.Context(), driver.Key{Name: "t"})
				if v := cell.Version.(version).of; err != nil || v > limit {
					t.Errorf("the version is %d, error %v; at most %d is allowed", v, err, limit)
				}
				mu.Lock()
				if seen[a.Grant] {
					t.Errorf("%v was granted twice", a.Grant)
				}
				seen[a.Grant] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if tag, err := last.Tag(t.Context(), "t"); err != nil || tag.Mark != 1+handles*rounds {
		t.Errorf("the mark is %d, error %v; want %d", tag.Mark, err, 1+handles*rounds)
	}
}

// TestVersionsComeRound: a version that a handle remembers is of no use once the
// node was made anew or removed, though the new node comes to the same version, nor
// once the node that names the store was changed.
func TestVersionsComeRound(t *testing.T) {
	url := testservers.SharedZooKeeper(t).URL + "/" + rand.Text()
	open := func() *Store {
		s, err := Open(t.Context(), url, Options{Timeout: patience.Call})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		s.space.renewAt = 8
		return s
	}
	take := func(s *Store) hapax.Grant {
		a, err := s.Allocate(t.Context(), "t", 1, "")
		if err != nil {
			t.Fatal(err)
		}
		return a.Grant
	}
	a, b := open(), open()
	def, err := hapax.Tag{Name: "t"}.WithDefaults()
	if err == nil {
		_, err = a.CreateTag(t.Context(), def, hapax.CreateFirstUse)
	}
	if err != nil {
		t.Fatal(err)
	}
	last := take(a) // a keeps version 1
	for range 9 {   // versions 2 to 8, made anew: 0, then 1
		last = take(b)
	}
	if g := take(a); g.Lo != last.Hi {
		t.Errorf("the grant after the node was made anew is %v; want it at %d", g, last.Hi)
	}

	swap := func(s *Store, old, next string, want bool) {
		t.Helper()
		values := [][]byte{[]byte(old), []byte(next)}
		for i, v := range []string{old, next} {
			if v == "" {
				values[i] = nil
			}
		}
		if ok, err := s.SwapRow(t.Context(), "table", "row", values[0], values[1]); err != nil || ok != want {
			t.Fatalf("the swap from %q to %q: %v, error %v; want %v", old, next, ok, err, want)
		}
	}
	swap(a, "", "a", true) // a keeps version 0
	swap(b, "a", "", true)
	swap(b, "", "b", true) // version 0 again
	swap(a, "a", "c", false)
	swap(a, "b", "c", true)

	there, absent, first := driver.Key{Table: "table", Name: "row"}, driver.Key{Table: "table", Name: "none"}, driver.Key{Table: "new", Name: "none"}
	seen := map[driver.Key]driver.Cell{}
	for _, key := range []driver.Key{there, absent, first} {
		if seen[key], err = a.space.read(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	l, err := a.space.current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Conn.Set(a.space.storeNode(), driver.EncodeRow(identity{ID: "another", Format: format}), -1); err != nil {
		t.Fatal(err)
	}
	for what, w := range map[string]struct {
		key  driver.Key
		next []byte
	}{"change": {there, []byte("d")}, "removal": {there, nil}, "creation": {absent, []byte("d")}, "first creation": {first, []byte("d")}} {
		r, err := a.space.Step(t.Context(), driver.Step{Each: []driver.Change{{Key: w.key, Old: seen[w.key], Next: w.next}}})
		if err == nil && r.Each[0].Done || err != nil && !errors.Is(err, hapax.ErrStoreReplaced) {
			t.Errorf("%s in another store: %+v, error %v; want it refused", what, r, err)
		}
		if _, err := a.space.read(t.Context(), w.key); !errors.Is(err, hapax.ErrStoreReplaced) {
			t.Errorf("the read after the %s: error is %v; want ErrStoreReplaced", what, err)
		}
	}
}

// TestCloseEndsGoroutines: also while calls hang because the server does not
// answer, or the connection was lost.
func TestCloseEndsGoroutines(t *testing.T) {
	server := testservers.ZooKeeper(t)
	if server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	proxy := testservers.NewProxy(t, server.Addr)
	for _, c := range []struct {
		name    string
		trouble func()
		mend    func()
	}{
		{"at rest", func() {}, func() {}},
		{"paused", server.Pause, server.Resume},
		{"cut off", proxy.Cut, proxy.Pass},
		{"black hole", proxy.Blackhole, proxy.Pass},
	} {
		before := count()
		s, err := Open(t.Context(), proxy.URL(server.URL), Options{Timeout: patience.Call})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		c.trouble()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		for range 3 {
			if err := s.Ping(ctx); err != nil && !errors.Is(err, hapax.ErrStoreUnavailable) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		cancel()
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		left := count() - before
		for range 400 { // the last ones may still have their last instruction to do
			if left <= 0 {
				break
			}
			patience.Again()
			left = count() - before
		}
		if left > 0 {
			t.Errorf("%s: %d goroutines of the store and its library are left", c.name, left)
		}
		c.mend()
	}
}

// count tells how many goroutines run code of this package or its library,
// the test's own among them.
func count() int {
	buf := make([]byte, 1<<20)
	n := 0
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "zkstore.") || strings.Contains(stack, "go-zookeeper/zk.") {
			n++
		}
	}
	return n
}
