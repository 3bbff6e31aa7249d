package coordtest

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
)

// emptied: a handle refuses a server that has lost its data, and also the new
// store that another handle then creates there.
func (d Driver) emptied(t *testing.T) {
	server := d.own(t)
	s := d.open(t, server.URL)
	create(t, s, "t")
	create(t, s, "same in both")
	id, err := s.StoreID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, s, "t", 10)
	server.Stop()
	if err := os.RemoveAll(filepath.Join(server.Dir, "data")); err != nil {
		t.Fatal(err)
	}
	server.Start()
	refuses(t, s, "t", hapax.ErrStoreReplaced)
	fresh := d.open(t, server.URL)
	for _, name := range []string{"t", "same in both", "another"} {
		create(t, fresh, name)
	}
	for range 50 { // so that the new store's history is the longer one
		eventually(t, fresh, "another", 1)
	}
	refuses(t, s, "same in both", hapax.ErrStoreReplaced)
	refuses(t, s, "t", hapax.ErrStoreReplaced)
	for what, err := range map[string]error{
		"Ping":    s.Ping(t.Context()),
		"StoreID": func() error { _, err := s.StoreID(t.Context()); return err }(),
		"Tag":     func() error { _, err := s.Tag(t.Context(), "t"); return err }(),
		"Tags":    func() error { _, err := s.Tags(t.Context(), "", 10); return err }(),
	} {
		if !errors.Is(err, hapax.ErrStoreReplaced) {
			t.Errorf("%s: error is %v; want ErrStoreReplaced", what, err)
		}
	}
	if other, err := fresh.StoreID(t.Context()); err != nil || other == id {
		t.Errorf("the new store's ID is %s, error %v; the old one's was %s", other, err, id)
	}
	if m := mark(t, fresh, "t"); m != 1 {
		t.Errorf("the refused handle raised the mark to %d", m)
	}
}

// rollBack puts the server back into the state before do.
func rollBack(t *testing.T, server *testservers.Server, do func()) {
	t.Helper()
	data, backup := filepath.Join(server.Dir, "data"), filepath.Join(t.TempDir(), "backup")
	server.Stop()
	if err := os.CopyFS(backup, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	server.Start()
	do()
	server.Stop()
	if err := errors.Join(os.RemoveAll(data), os.CopyFS(data, os.DirFS(backup))); err != nil {
		t.Fatal(err)
	}
	server.Start()
}

// rolledBack: a server that is back in an earlier state shows it by the beat.
func (d Driver) rolledBack(t *testing.T) {
	server := d.own(t)
	s := d.open(t, server.URL).(driver.Guarding)
	beat := func(was, now int64) driver.Contact {
		t.Helper()
		p := driver.Pulse{Row: "n", Was: driver.Beat{Count: was}, Now: driver.Beat{Count: now}}
		return patience.Await(t, "a beat", func() (driver.Contact, error) {
			c, err := s.Beat(t.Context(), p)
			if err != nil && !errors.Is(err, hapax.ErrStoreUnavailable) {
				t.Fatal(err)
			}
			return c, err
		}, func(driver.Contact) bool { return true })
	}
	first := driver.Beat{Count: 1}.Encode()
	if ok, err := s.SwapRow(t.Context(), driver.TableBeats, "n", nil, first); !ok || err != nil {
		t.Fatal(ok, err)
	}
	const beats = 50
	rollBack(t, server, func() {
		for i := range int64(beats) {
			if c := beat(1+i, 2+i); !c.Met {
				t.Fatalf("the contact is %+v", c)
			}
		}
	})
	for range 20 {
		if c := beat(1+beats, 2+beats); c.Met || string(c.Row) != string(first) {
			t.Fatalf("the contact is %+v; want no beat, and the row %q", c, first)
		}
	}
}

// overtaken: after a rollback others have written so much that the row has been
// changed as often as the handle remembers. The handle may not notice, but what
// it remembers must not lower the mark.
func (d Driver) overtaken(t *testing.T) {
	server := d.own(t)
	s := d.open(t, server.URL)
	create(t, s, "t")
	const changes = 20
	rollBack(t, server, func() {
		for range changes {
			eventually(t, s, "t", 10)
		}
	})
	other := d.open(t, server.URL)
	create(t, other, "another")
	for range changes {
		eventually(t, other, "t", 20)
		eventually(t, other, "another", 1)
		eventually(t, other, "another", 1)
	}
	before := mark(t, other, "t")
	for range 10 {
		if g, err := allocate(t, s, "t", 10); err == nil && g.Lo < before {
			t.Errorf("granted %v below the mark %d", g, before)
		}
	}
	if after := mark(t, other, "t"); after < before {
		t.Errorf("the mark went from %d to %d", before, after)
	}
}

// notThere: Open waits for a server up to the deadline.
func (d Driver) notThere(t *testing.T) {
	server, url := d.shared(t)
	url = strings.Replace(url, server.Addr, net.JoinHostPort("127.0.0.1", strconv.Itoa(testservers.FreePort(t))), 1)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	s, err := d.Open(ctx, url, nil)
	if err == nil {
		s.Close()
	}
	if !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open: error is %v; want ErrStoreUnavailable and the context's", err)
	}
}
