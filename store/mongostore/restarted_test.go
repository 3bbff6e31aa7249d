package mongostore_test

import (
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/mongostore"
)

// A server that was started anew is another primary: it may stand on a copy. A real mongod
// tells its process itself; the stand-in for it has been taught to.
func TestRestartedServerIsAnother(t *testing.T) {
	t.Parallel()
	server := own(t)
	s := open(t, server.URL, mongostore.Options{})
	first := driver.Beat{Count: 1}
	if ok, err := s.SwapRow(t.Context(), driver.TableBeats, "n", nil, first.Encode()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	given, err := mongostore.New(t.Context(), raw(t, server), mongostore.Options{Timeout: patience.Call})
	if err != nil {
		t.Fatal(err)
	}
	primaryOf := func(s *mongostore.Store) (primary string) {
		t.Helper()
		patience.Until(t, "the store answers", func() bool {
			c, err := s.Beat(t.Context(), driver.Pulse{Row: "n", Was: first, Now: first})
			primary = c.Primary
			return err == nil && c.Met
		})
		if primary == "" {
			t.Error("who answers is not told")
		}
		return primary
	}
	told := map[string]bool{}
	for _, restart := range []func(){func() {}, server.Kill, server.Stop} {
		restart()
		server.Start()
		now := primaryOf(s)
		if told[now] {
			t.Errorf("after a restart %q answers again", now)
		}
		told[now] = true
		for _, other := range []*mongostore.Store{s, given, open(t, server.URL, mongostore.Options{})} {
			if p := primaryOf(other); p != now {
				t.Errorf("%q and %q answer", now, p)
			}
		}
	}
}
