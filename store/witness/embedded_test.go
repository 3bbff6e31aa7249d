package witness_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// An embedded store is shared with nobody. It tells its tags only when it may.
type embedded struct {
	*memstore.Store
	mu    sync.Mutex
	fails int           // so many times
	may   chan struct{} // closed when it may; nil: at once

	states []witness.State // of the node on it
}

func (e *embedded) Shared() bool { return false }

// Close leaves the store open: it is used again.
func (e *embedded) Close() error { return nil }

func (e *embedded) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	e.mu.Lock()
	may := e.may
	e.fails--
	failed := e.fails >= 0
	e.mu.Unlock()
	if failed {
		return nil, fmt.Errorf("%w: for the test", hapax.ErrStoreUnavailable)
	}
	if may != nil {
		select {
		case <-may:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return e.Store.Tags(ctx, after, limit)
}

// hold has the store tell its tags only when the function that it returns is called.
func (e *embedded) hold() (release func()) {
	may := make(chan struct{})
	e.mu.Lock()
	defer e.mu.Unlock()
	e.may = may
	return sync.OnceFunc(func() { close(may) })
}

// guarded starts a node on an embedded store with the witness at path.
func (e *embedded) guarded(t *testing.T, path string) (*witness.Guarded, *witness.Witness, func()) {
	t.Helper()
	w, err := witness.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	g, err := witness.Guard(e, w, witness.Options{Changed: func(st witness.Status) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.states = append(e.states, st.State)
	}})
	if err != nil {
		t.Fatal(err)
	}
	return g, w, sync.OnceFunc(func() {
		if err := errors.Join(g.Close(), w.Close()); err != nil {
			t.Error(err)
		}
	})
}

func newEmbedded(t *testing.T, tags ...string) *embedded {
	t.Helper()
	e := &embedded{Store: memstore.New()}
	for _, tag := range tags {
		def, err := hapax.Tag{Name: tag}.WithDefaults()
		if err == nil {
			_, err = e.CreateTag(t.Context(), def, hapax.CreateExplicit)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// A node on an embedded store is granted numbers while all lines are still being read. A
// reading that fails is made again.
func TestServesDuringItsFirstSurvey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEmbedded(t, "t", "u")
		e.fails = 3
		release := e.hold()
		g, w, end := e.guarded(t, filepath.Join(memoryDir(t), "witness"))
		began := time.Now()
		if _, err := g.Allocate(t.Context(), "t", 1000, ""); err != nil || time.Since(began) > time.Second {
			t.Errorf("the first numbers came after %v, %v", time.Since(began), err)
		}
		time.Sleep(2 * time.Second)
		if _, known := w.Pair(witness.TagLine("u")); known {
			t.Error("the lines were read before")
		}
		release()
		time.Sleep(2 * time.Second)
		if _, known := w.Pair(witness.TagLine("u")); !known {
			t.Error("the lines were not read")
		}
		end()
	})
}

// Where all lines are read at once a node has read them when it serves.
func TestServesAfterAShortSurvey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, w, end := newEmbedded(t, "t", "u").guarded(t, filepath.Join(memoryDir(t), "witness"))
		defer end()
		if _, err := g.Allocate(t.Context(), "t", 1000, ""); err != nil {
			t.Fatal(err)
		}
		if _, known := w.Pair(witness.TagLine("u")); !known {
			t.Error("the lines were not read")
		}
	})
}

// Each grant is compared by itself while a node on an embedded store still reads all lines:
// it never issues of one that was set back. What else was set back is found by the reading.
func TestSetBackBeforeTheFirstSurvey(t *testing.T) {
	for _, byGrant := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			e, path := newEmbedded(t, "t", "u"), filepath.Join(memoryDir(t), "witness")
			g, _, end := e.guarded(t, path)
			if _, err := g.Allocate(t.Context(), "u", 1000, ""); err != nil {
				t.Fatal(err)
			}
			backup := e.Snapshot()
			if _, err := g.Allocate(t.Context(), "t", 1000, ""); err != nil {
				t.Fatal(err)
			}
			end()
			keepRows(t, backup, e.Store)
			e.Restore(backup) // the lines alone, and the rows are as they were

			release := e.hold()
			g, _, end = e.guarded(t, path)
			if _, err := g.Allocate(t.Context(), "u", 1000, ""); err != nil {
				t.Errorf("a line that was not set back: %v", err)
			}
			if byGrant {
				if a, err := g.Allocate(t.Context(), "t", 1000, ""); !errors.Is(err, hapax.ErrStoreRolledBack) {
					t.Errorf("a line that was set back: granted %+v, %v; want ErrStoreRolledBack", a.Grant, err)
				}
			}
			release()
			time.Sleep(15 * time.Second)
			e.mu.Lock()
			if !slices.Contains(e.states, witness.Refusing) {
				t.Errorf("found by a grant %v: the node was %v; want refusing, too", byGrant, e.states)
			}
			e.mu.Unlock()
			a, err := g.Allocate(t.Context(), "t", 1000, "")
			if err != nil || a.Grant.Lo < 1001 {
				t.Errorf("once it has healed: %+v, %v; want numbers from 1001 or above", a.Grant, err)
			}
			end()
		})
	}
}

// A line that is not there at all is found by the reading, too.
func TestMissingLineOfAnEmbeddedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, path := newEmbedded(t, "t"), filepath.Join(memoryDir(t), "witness")
		g, _, end := e.guarded(t, path)
		if _, err := g.Allocate(t.Context(), "t", 1000, ""); err != nil {
			t.Fatal(err)
		}
		backup := e.Snapshot()
		def, err := hapax.Tag{Name: "u"}.WithDefaults()
		if err == nil {
			_, err = g.CreateTag(t.Context(), def, hapax.CreateFirstUse)
		}
		if err == nil {
			_, err = g.Allocate(t.Context(), "u", 1000, "")
		}
		if err != nil {
			t.Fatal(err)
		}
		end()
		keepRows(t, backup, e.Store)
		e.Restore(backup)

		g, _, end = e.guarded(t, path)
		defer end()
		time.Sleep(15 * time.Second)
		if a, err := g.Allocate(t.Context(), "u", 1000, ""); err != nil || a.Grant.Lo < 1001 {
			t.Errorf("once it has healed: %+v, %v; want numbers from 1001 or above", a.Grant, err)
		}
	})
}

// Starts that are too short for their surveys leave no more rows than are removed at a time:
// now and then one waits for its survey.
func TestShortStartsOnAnEmbeddedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, path := newEmbedded(t, "t"), filepath.Join(memoryDir(t), "witness")
		most := 0
		for range 250 {
			release := e.hold()
			time.AfterFunc(2*time.Second, release)
			g, _, end := e.guarded(t, path)
			if _, err := g.Allocate(t.Context(), "t", 10, ""); err != nil {
				t.Fatal(err)
			}
			end()
			release()
			rows, err := e.ListRows(t.Context(), driver.TableBeats, "", 1000)
			if err != nil {
				t.Fatal(err)
			}
			most = max(most, len(rows))
		}
		if most > 110 {
			t.Errorf("there were %d rows; want those of a hundred starts, and a few", most)
		}
	})
}
