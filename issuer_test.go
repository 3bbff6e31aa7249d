package hapax_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// deafStore answers an hour late and does not listen to contexts.
type deafStore struct {
	driver.Store
	calls int
}

func (s *deafStore) wait() {
	if s.calls++; s.calls > 1 {
		patience.Slow(time.Hour)
	}
}

func (s *deafStore) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	a, err := s.Store.Allocate(context.WithoutCancel(ctx), tag, n, last)
	s.wait()
	return a, err
}

func (s *deafStore) ExtendWorker(ctx context.Context, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	l, err := s.Store.ExtendWorker(context.WithoutCancel(ctx), l, layout, term)
	s.calls++
	s.wait()
	return l, err
}

// Whatever the store does, after Close nothing is issued.
func TestCloseIsFinalWhileTheStoreHangs(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) hapax.Issuer{
		"segment": func(t *testing.T) hapax.Issuer {
			store := memstore.New()
			def, _ := hapax.Tag{Name: "orders", Step: 10}.WithDefaults()
			if _, err := store.CreateTag(t.Context(), def, hapax.CreateExplicit); err != nil {
				t.Fatal(err)
			}
			return newSegment(t, &deafStore{Store: store}, hapax.SegmentOptions{Clock: newTestClock()})
		},
		"snowflake": func(t *testing.T) hapax.Issuer {
			return newSnowflake(t, &deafStore{Store: memstore.New()}, hapax.SnowflakeOptions{Clock: newTestClock()})
		},
	} {
		bubble(t, name, func(t *testing.T) {
			s := open(t)
			for range 9 { // far enough that a refill is under way
				next(t, s)
				time.Sleep(time.Second)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Close during the refill: %v, want the deadline", err)
			}
			for range 3 {
				if id, err := s.Next(t.Context()); !errors.Is(err, hapax.ErrClosed) {
					t.Fatalf("after Close: %d, %v, want ErrClosed", id, err)
				}
				if n, err := s.NextN(t.Context(), make([]hapax.ID, 5)); n != 0 || !errors.Is(err, hapax.ErrClosed) {
					t.Fatalf("after Close: %d numbers, %v, want ErrClosed", n, err)
				}
				time.Sleep(2 * time.Hour) // the store answers
			}
		})
	}
}

// The hot paths do not allocate.
func TestIssuingDoesNotAllocate(t *testing.T) {
	ctx, buf := t.Context(), make([]hapax.ID, 256)
	for name, s := range map[string]hapax.Issuer{
		"segment":         newSegment(t, memstore.New(), hapax.SegmentOptions{Step: 10_000_000, MaxStep: 10_000_000}),
		"snowflake":       newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Layout: mustLayout(t, wide)}),
		"mutex snowflake": newSnowflake(t, memstore.New(), hapax.SnowflakeOptions{Layout: mustLayout(t, wide), Mutex: true}),
	} {
		if n := testing.AllocsPerRun(5000, func() {
			if _, err := s.Next(ctx); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: Next allocates %v times", name, n)
		}
		if n := testing.AllocsPerRun(1000, func() {
			if _, err := s.NextN(ctx, buf); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: NextN allocates %v times", name, n)
		}
	}
}
