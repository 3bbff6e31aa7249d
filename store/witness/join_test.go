package witness_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A node alone waits as long as a living one takes to meet the store; one that joins
// others that live, until these have seen it.
func TestJoins(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		if took := a.within(7 * time.Second); took < wait || took > wait+time.Second {
			t.Errorf("a, alone, was granted its first numbers after %v; want %v and up to a second", took, wait)
		}
		b := f.start("b")
		if took := b.within(3 * time.Second); took > 2500*time.Millisecond {
			t.Errorf("b, beside a, was granted its first numbers after %v; want 2.5 s at most", took)
		}
		a.must("t", 10)
	})
}

// The store goes back under living nodes: all refuse within a beat, and go on by
// themselves.
func TestHealsByItself(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b, c := f.start("a"), f.start("b"), f.start("c")
		for _, m := range []*machine{a, b, c} {
			m.within(12 * time.Second)
		}
		time.Sleep(2 * time.Second)
		backup := f.store.Snapshot()
		time.Sleep(3 * time.Second)
		for range 20 {
			a.must("t", 100)
			b.must("t", 100)
			c.must("t", 100)
		}
		f.store.Restore(backup)
		for _, m := range []*machine{a, b, c} {
			took := m.within(10 * time.Second)
			t.Logf("%s went on after %v", m.name, took)
		}
	})
}

// A survey that takes longer than others wait for a heartbeat keeps nobody from joining.
func TestLongSurveyOfAJoiner(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		f.start("a").within(7 * time.Second)
		f.wrap = func(c *conn) driver.Store { return manyTags{c} }
		b := f.start("b")
		b.within(listing + 5*time.Second)
	})
}

// manyTags takes its time to list its tags.
type manyTags struct{ *conn }

const listing = 8 * time.Second

func (s manyTags) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	select {
	case <-time.After(listing):
		return s.conn.Tags(ctx, after, limit)
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, ctx.Err())
	}
}
