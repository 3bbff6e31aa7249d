package witness

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable/losing"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// A witness that was opened, and so written anew, outlives a power loss.
func TestPowerLoss(t *testing.T) {
	for name, lose := range map[string]func(*losing.Disk) error{"names": (*losing.Disk).LoseNames, "contents": (*losing.Disk).LoseContents} {
		path, disk := filepath.Join(t.TempDir(), "witness"), losing.New()
		for range 2 {
			w, err := openOn(path, disk)
			if err != nil {
				t.Fatal(err)
			}
			c := w.begin("tag/t")
			mark, _ := w.Mark("tag/t")
			if err := w.accept(c, hapax.Grant{Lo: mark, Hi: mark + 10}, 0); err != nil {
				t.Fatal(err)
			}
			w.end(c)
			if err := errors.Join(w.Close(), lose(disk)); err != nil {
				t.Fatal(err)
			}
		}
		said, err := Read(path)
		if err != nil || said["tag/t"] != 20 {
			t.Errorf("after a power loss that took the %s: %v, error %v", name, said, err)
		}
	}
}

// A node that was killed after it had refused, and before its fence stood, puts it
// in the place of one of long ago that came back with the store.
func TestFenceOfLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, w := memstore.New(), newWitness(t)
		id, err := store.StoreID(t.Context())
		if err == nil {
			err = errors.Join(w.setRefusal("at first"), w.setFence("old"), w.settleFor(id), w.setRefusal("found anew"))
		}
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := store.SwapRow(t.Context(), driver.TableFence, rowFence, nil, []byte(`{"id":"old","node":"x","name":"x","at":"2026-01-01T00:00:00Z","why":"long ago"}`)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		g, err := Guard(store, w, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		time.Sleep(2 * time.Second)
		var fence Fence
		raw, err := store.Row(t.Context(), driver.TableFence, rowFence)
		if err == nil {
			err = json.Unmarshal(raw, &fence)
		}
		if err != nil || fence.Why != "found anew" || len(fence.Replaces) != 1 || fence.Replaces[0] != "old" {
			t.Errorf("the fence is %s, error %v", raw, err)
		}
		if st := g.Status(); st.State != Refusing || st.Why != "found anew" {
			t.Errorf("the status is %+v", st)
		}
	})
}
