package witness

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// A node that joins says within two seconds why it cannot, though a driver tries again for
// as long as it may; one that can says nothing that looks like trouble.
func TestJoiningSaysWhyItCannot(t *testing.T) {
	for name, open := range map[string]func(context.Context) (driver.Store, error){
		"refused": func(ctx context.Context) (driver.Store, error) {
			<-ctx.Done()
			return nil, fmt.Errorf("connection refused: %w", ctx.Err())
		},
		"": func(context.Context) (driver.Store, error) { return memstore.New(), nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, err := OpenFile(filepath.Join(t.TempDir(), "witness"))
				if err != nil {
					t.Fatal(err)
				}
				var mu sync.Mutex // guards why
				why := ""
				g, err := GuardOpened(open, w, Options{Changed: func(st Status) {
					mu.Lock()
					defer mu.Unlock()
					if st.Trouble {
						why = st.Why
					}
				}})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				mu.Lock()
				if (name == "") != (why == "") || !strings.Contains(why, name) {
					t.Errorf("it says %q, and its state %q", why, g.Status().Why)
				}
				mu.Unlock()
				g.Kill()
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A node that joins and finds nobody waits for W, and says nothing that looks like trouble,
// though each of its calls takes a while; nor does the next one, which it meets.
func TestHealthyJoinIsNoTrouble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &counted{Store: memstore.New(), shared: true}
		for i, least := range []time.Duration{5 * time.Second, time.Second} {
			w, err := OpenFile(filepath.Join(t.TempDir(), "witness"))
			if err != nil {
				t.Fatal(err)
			}
			told := make(chan Status, 100)
			began := time.Now()
			g, err := GuardOpened(func(context.Context) (driver.Store, error) {
				time.Sleep(200 * time.Millisecond) // of the connection
				return shared, nil
			}, w, Options{Changed: func(st Status) { told <- st }})
			if err != nil {
				t.Fatal(err)
			}
			for g.Status().State != Serving && time.Since(began) < time.Minute {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(began); took < least || took > 10*time.Second {
				t.Errorf("node %d joins within %v", i, took)
			}
			for len(told) > 0 {
				if st := <-told; st.Trouble {
					t.Errorf("node %d: %s: %s", i, st.State, st.Why)
				}
			}
			t.Cleanup(func() { g.Kill(); _ = w.Close() })
		}
	})
}
