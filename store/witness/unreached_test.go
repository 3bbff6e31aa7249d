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
