package coordtest

import (
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
)

// primaryOf returns who answers a guarded call.
func primaryOf(t testing.TB, s driver.Store) (primary string) {
	t.Helper()
	beat := driver.Pulse{Row: "n", Was: driver.Beat{Count: 1}, Now: driver.Beat{Count: 2}}
	patience.Until(t, "the store answers", func() bool {
		c, err := s.(driver.Guarding).Beat(t.Context(), beat)
		primary = c.Primary
		return err == nil
	})
	if primary == "" {
		t.Error("who answers is not told")
	}
	return primary
}

// joined makes the row of the process that beats.
func joined(t testing.TB, s driver.Store) {
	t.Helper()
	if ok, err := s.(driver.Guarding).SwapRow(t.Context(), driver.TableBeats, "n", nil, driver.Beat{Count: 1}.Encode()); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

// restarted: a server that was started anew is another primary, since it may stand on a copy.
// All handles call one run of it the same.
func (d Driver) restarted(t *testing.T) {
	server := d.own(t)
	s := d.open(t, server.URL)
	joined(t, s)
	told := map[string]bool{primaryOf(t, s): true}
	if other := primaryOf(t, d.open(t, server.URL)); !told[other] {
		t.Errorf("two handles tell %v and %q", told, other)
	}
	for _, end := range []func(){server.Kill, server.Stop, server.Kill} {
		end()
		server.Start()
		now := primaryOf(t, s)
		if told[now] {
			t.Errorf("after a restart %q answers again", now)
		}
		told[now] = true
	}
}

// elected: the members of a cluster are one primary, until another leader is elected.
func (d Driver) elected(t *testing.T) {
	members, url := d.Cluster(t, 3)
	same := func() (primary string) {
		t.Helper()
		for range 2 * len(members) { // which lead to different members
			s := d.open(t, url)
			for range members {
				switch now := primaryOf(t, s); {
				case primary == "":
					primary = now
				case now != primary:
					t.Errorf("%q and %q answer", primary, now)
				}
			}
		}
		return primary
	}
	s := d.open(t, url)
	joined(t, s)
	before := same()
	told, changed := before, 0
	for _, m := range members { // the leader among them
		m.Kill()
		primaryOf(t, s)
		m.Start()
		if now := same(); now != told {
			told, changed = now, changed+1
		}
	}
	if changed == 0 {
		t.Errorf("%q answers, also after the leader was killed", told)
	}
	restartAll(members)
	if now := same(); now == before || now == told {
		t.Errorf("after a restart of all members %q answers again", now)
	}
}

func restartAll(members []*testservers.Server) {
	for _, m := range members {
		m.Kill()
	}
	started := make(chan struct{})
	for _, m := range members {
		go func() { m.Start(); started <- struct{}{} }()
	}
	for range members {
		<-started
	}
}
