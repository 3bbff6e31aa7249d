package service

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/storetest"
)

// A node that stops under load, on a tag of which another node was granted more since,
// uses up what it has in hand. It waits for nothing that nobody asks for, that would not
// be used up in time, or that can go back.
func TestEbb(t *testing.T) {
	for _, tt := range []struct {
		name   string
		others bool
		step   int64
		asked  bool
		lost   func(n int64) bool
		waited func(d time.Duration) bool
	}{
		{
			"used up", true, 1000, true,
			func(n int64) bool { return n <= 50 }, // a twentieth of a second's
			func(d time.Duration) bool { return d < 5*time.Second },
		},
		{
			"nobody asks any more", true, 1000, false,
			func(n int64) bool { return n > 100 },
			func(d time.Duration) bool { return d <= time.Second },
		},
		{
			"too much", true, 1_000_000, true,
			func(n int64) bool { return n > 100_000 },
			func(d time.Duration) bool { return d <= ebbSample },
		},
		{
			"much, and time", true, 6000, true,
			func(n int64) bool { return n <= 50 },
			func(d time.Duration) bool { return d <= 2*time.Second },
		},
		{
			"alone", false, 1000, true,
			func(n int64) bool { return n == 0 },
			func(d time.Duration) bool { return d == 0 },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			opts := Options{Tags: map[string]TagConfig{"orders": {Step: tt.step, MinStep: 1, MaxStep: tt.step}}}
			bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
				ctx, stop := context.WithCancel(t.Context())
				var load sync.WaitGroup
				defer load.Wait()
				defer stop()
				load.Go(func() {
					for ctx.Err() == nil { // 1,000 a second
						_, _ = s.Next(ctx, "orders")
						time.Sleep(time.Millisecond)
					}
				})
				time.Sleep(5500 * time.Millisecond) // two looks at the rate, and half of a segment
				if tt.others {
					other, err := hapax.NewSegment(t.Context(), store, "orders", hapax.SegmentOptions{})
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = other.Close(t.Context()) }()
				}
				if !tt.asked {
					stop()
					load.Wait()
				}
				s.Leave()
				synctest.Wait()
				if tt.name == "much, and time" {
					time.Sleep(5 * time.Second)
				}
				began := time.Now()
				waits, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				s.Ebb(waits)
				waited := time.Since(began)
				if tt.name == "used up" {
					grants := func() int64 { return store.Calls("Allocate") + store.Calls("AllocateAllWith") }
					before := grants()
					for range 3 {
						if _, err := s.Next(t.Context(), "orders"); !errors.Is(err, hapax.ErrClosed) {
							t.Errorf("what is in hand is used up, and one more gives %v; want ErrClosed", err)
						}
					}
					if more := grants() - before; before == 0 || more != 0 {
						t.Errorf("%d grants more after %d: what they hold is lost", more, before)
					}
				}
				if err := s.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				if lost := s.Parting().Lost; !tt.lost(lost) || !tt.waited(waited) {
					t.Errorf("%d numbers are lost after %v", lost, waited)
				}
			})
		})
	}
}

// A call that has some of its numbers when the tag is used up before a stop gets the rest
// from a segment more: those that it has would be lost, and no log would tell of them.
func TestEbbCompletesACall(t *testing.T) {
	bubble(t, Options{Tags: map[string]TagConfig{"orders": {Step: 100, MaxStep: 100}}}, func(t *testing.T, s *Service, _ *storetest.Faults) {
		first, err := s.Next(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // what is fetched ahead has come
		l := s.tags.find("orders")
		l.dry.Store(true)
		l.segment.Ebb(0)
		dst := make([]hapax.ID, l.segment.Stats().Remaining+10)
		if n, err := s.NextN(t.Context(), "orders", dst); n != len(dst) || err != nil {
			t.Fatalf("%d of %d numbers, error %v", n, len(dst), err)
		}
		for i, id := range dst {
			if id != first+hapax.ID(i)+1 {
				t.Fatalf("number %d is %d; want %d", i, id, first+hapax.ID(i)+1)
			}
		}
	})
}
