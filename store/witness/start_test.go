package witness_test

import (
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// A store is put back while its nodes are stopped in good order. Those that start
// know better, on whatever line, before a new one is granted anything.
func TestStoreRestoredWhileNodesAreStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, dir, used := memstore.New(), t.TempDir(), map[hapax.ID]string{}
		for _, tag := range []string{"t", "u"} {
			if _, err := store.CreateTag(t.Context(), hapax.Tag{Name: tag}, hapax.CreateExplicit); err != nil {
				t.Fatal(err)
			}
		}
		a := startNode(t, store, filepath.Join(dir, "a"), "a", used)
		a.mustUse("t", 500)
		backup := store.Snapshot()
		a.mustUse("t", 3000)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if err := a.Witness().Close(); err != nil {
			t.Fatal(err)
		}
		store.Restore(backup)

		a = startNode(t, store, filepath.Join(dir, "a"), "a", used)
		if err := a.use("u", 1); !errors.Is(err, hapax.ErrFenced) || !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Errorf("another line: %v", err)
		}
		b := startNode(t, store, filepath.Join(dir, "b"), "b", used)
		if err := b.use("t", 1); !errors.Is(err, hapax.ErrFenced) {
			t.Errorf("a new node: %v", err)
		}
		time.Sleep(3 * time.Second)
		if _, err := witness.Adopt(t.Context(), store, witness.AdoptRequest{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		a.mustUse("t", 10)
		b.mustUse("t", 10)
		a.stop()
		b.stop()
	})
}
