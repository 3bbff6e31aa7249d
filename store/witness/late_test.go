package witness_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// A tardy store carries out a heartbeat that was given up only when the next one
// comes, just before it: after the node has looked whether it was written.
type tardy struct {
	unclosed

	mu    sync.Mutex // guards what follows
	delay bool       // the next heartbeat is given up
	late  func()     // carries it out
}

func (s *tardy) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if table != driver.TableNodes {
		return s.unclosed.SwapRow(ctx, table, name, old, next)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.delay {
		s.delay = false
		s.late = func() { _, _ = s.unclosed.SwapRow(context.WithoutCancel(ctx), table, name, old, next) }
		return false, hapax.ErrStoreUnavailable
	}
	if s.late != nil {
		s.late()
		s.late = nil
	}
	return s.unclosed.SwapRow(ctx, table, name, old, next)
}

// A heartbeat that was given up and arrives later is no reason to refuse. It does not
// stand for the one after a grant either, before which it began: that one follows at
// once.
func TestHeartbeatThatArrivesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tardy{unclosed: unclosed{memstore.New()}}
		if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		w, err := witness.Open(filepath.Join(t.TempDir(), "witness"))
		if err != nil {
			t.Fatal(err)
		}
		g, err := witness.Guard(s, w, witness.Options{Heartbeat: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		take := func() error {
			_, err := g.Allocate(t.Context(), "t", 10, "")
			return err
		}
		beat := func() (row struct{ Beat int64 }) {
			raw, err := s.Row(t.Context(), driver.TableNodes, w.Node())
			if err == nil {
				err = json.Unmarshal(raw, &row)
			}
			if err != nil {
				t.Fatal(err)
			}
			return row
		}
		if err := take(); err != nil {
			t.Fatal(err)
		}
		before := beat()
		s.mu.Lock()
		s.delay = true
		s.mu.Unlock()
		if err := take(); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Fatalf("without an answer to the heartbeat: error is %v, want ErrStoreUnavailable", err)
		}
		if now := beat(); now != before {
			t.Fatalf("heartbeat %d was written, which was given up on its way", now.Beat)
		}
		if err := g.Ping(t.Context()); err != nil { // a heartbeat: the one that was given up arrives before it
			t.Fatalf("after a heartbeat that came late: %v, %+v", err, g.Status())
		}
		if now := beat(); now.Beat != before.Beat+2 {
			t.Errorf("heartbeat %d stands after the one that came late and the one that followed; %d stood before", now.Beat, before.Beat)
		}
		if err := take(); err != nil {
			t.Error(err)
		}
		if st := g.Status(); st.State != witness.Serving {
			t.Errorf("the status is %+v", st)
		}
		if err := errors.Join(g.Close(), w.Close()); err != nil {
			t.Error(err)
		}
	})
}
