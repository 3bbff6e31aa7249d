package strategy_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/strategy"
)

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rate := strategy.NewRate(time.Minute)
		after := rate.Plugin().After
		r := strategy.NewRegistry(strategy.Options{})
		must(t, r.Register("mine", strategy.Func(func(context.Context, hapax.Tag) (hapax.Issuer, error) { return &counter{}, nil })))
		must(t, r.Use(rate.Plugin()))
		l := open(t, r, "mine", hapax.Tag{Name: "t"})
		ann := strategy.WithCaller(t.Context(), "ann")
		_, err := l.NextN(ann, make([]hapax.ID, 5))
		must(t, err)
		_, err = l.Next(t.Context())
		must(t, err)
		want := []strategy.Usage{{Tag: "t", Window: time.Minute, Current: 1, Previous: 0}, {Tag: "t", Caller: "ann", Window: time.Minute, Current: 5, Previous: 0}}
		if got := rate.Counts(); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		time.Sleep(time.Minute)
		_, err = l.Next(ann)
		must(t, err)
		want = []strategy.Usage{{Tag: "t", Window: time.Minute, Current: 0, Previous: 1}, {Tag: "t", Caller: "ann", Window: time.Minute, Current: 1, Previous: 5}}
		if got := rate.Counts(); !slices.Equal(got, want) {
			t.Errorf("a minute later: got %v, want %v", got, want)
		}
		time.Sleep(2 * time.Minute)
		if got := rate.Counts(); len(got) != 0 {
			t.Errorf("who got nothing is still known: %v", got)
		}
		for i := range 20_000 { // hostile callers
			_ = after(strategy.WithCaller(t.Context(), string(rune(0x4e00+i))), strategy.NewCall("", "t", 1), strategy.NewNumbers(1))
		}
		if got := rate.Counts(); len(got) != 10_001 || got[0].Caller != strategy.OtherCallers || got[0].Current != 10_000 {
			t.Errorf("got %d counts, the first is %v", len(got), got[0])
		}
	})
}

func TestQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := strategy.Quota("day", strategy.ByCaller, 10, 24*time.Hour)
		must(t, err)
		ask := func(caller string, n int) error {
			return p.Before(strategy.WithCaller(t.Context(), caller), strategy.NewCall("", "t", n))
		}
		must(t, ask("ann", 7))
		must(t, ask("ann", 3))
		must(t, ask("bob", 10))
		midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		q, ok := errors.AsType[*strategy.QuotaError](ask("ann", 1))
		if !ok || q.Of != "ann" || !q.RetryAt().Equal(midnight) {
			t.Errorf("got %v", q)
		}
		time.Sleep(24 * time.Hour)
		must(t, ask("ann", 10))
		if q, ok := errors.AsType[*strategy.QuotaError](ask("cid", 11)); !ok || !q.RetryAt().IsZero() {
			t.Errorf("a call above the limit: %v", q)
		}

		r := newRegistry(t)
		p, err = strategy.Quota("minute", strategy.ByTag, 2, time.Minute)
		must(t, err)
		must(t, r.Use(p))
		inner := &counter{}
		must(t, r.Register("mine", strategy.Func(func(context.Context, hapax.Tag) (hapax.Issuer, error) { return inner, nil })))
		l := open(t, r, "mine", hapax.Tag{Name: "t"})
		_, err = l.NextN(t.Context(), make([]hapax.ID, 2))
		must(t, err)
		_, err = l.Next(t.Context())
		veto, ok := errors.AsType[*strategy.VetoError](err)
		if !ok || veto.Plugin != "minute" || time.Until(veto.RetryAt()) > time.Minute || time.Until(veto.RetryAt()) <= 0 {
			t.Errorf("got %v", err)
		}
		must(t, l.Close(t.Context()))
	})
	for _, err := range []error{
		func() error { _, err := strategy.Quota("q", strategy.ByTag, 0, time.Minute); return err }(),
		func() error { _, err := strategy.Quota("q", strategy.ByTag, 1, time.Millisecond); return err }(),
	} {
		if !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("got %v", err)
		}
	}
}

var testKey = []byte("0123456789abcdef0123456789abcdef")

func TestScramblerIsABijection(t *testing.T) {
	s, err := strategy.NewScrambler(testKey, 3)
	must(t, err)
	seen := map[hapax.ID]bool{}
	for id := range hapax.ID(20_000) { // three bands, from end to end but for the last
		shown, err := s.Scramble("t", id)
		must(t, err)
		if seen[shown] {
			t.Fatalf("%d is shown twice", shown)
		}
		seen[shown] = true
		if id < 1000 != (shown < 1000) {
			t.Fatalf("%d is shown as %d, of another length", id, shown)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		digits := rapid.IntRange(2, 19).Draw(t, "digits")
		s, err := strategy.NewScrambler(testKey, digits)
		if err != nil {
			t.Fatal(err)
		}
		id := hapax.ID(rapid.Int64Min(0).Draw(t, "id"))
		shown, err := s.Scramble("t", id)
		if err != nil || shown < 0 {
			t.Fatalf("%d is shown as %d, %v", id, shown, err)
		}
		if back, err := s.Original("t", shown); err != nil || back != id {
			t.Fatalf("%d is shown as %d, which is read as %d, %v", id, shown, back, err)
		}
	})
	if _, err := s.Scramble("t", -1); err == nil {
		t.Error("a negative number was scrambled")
	}
	if _, err := s.Original("t", -1); err == nil {
		t.Error("a negative number was read")
	}
	a, _ := s.Scramble("a", 5)
	b, _ := s.Scramble("b", 5)
	c, _ := s.Scramble("c", 5)
	if a == b && b == c {
		t.Error("the tag does not matter")
	}
	for _, digits := range []int{1, 20} {
		if _, err := strategy.NewScrambler(testKey, digits); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%d digits: %v", digits, err)
		}
	}
	if _, err := strategy.NewScrambler(testKey[:4], 9); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("a short key: %v", err)
	}
}

// TestNumbersStayUnique issues from many goroutines while plugins fail, panic and
// veto at random, and come and go.
func TestNumbersStayUnique(t *testing.T) {
	for _, scrambled := range []bool{false, true} {
		r := newRegistry(t)
		misbehave := func(where string) error {
			switch rand.IntN(20) {
			case 0:
				panic(where)
			case 1:
				return errors.New(where)
			}
			return nil
		}
		bad := strategy.Plugin{
			Name:    "bad",
			Before:  func(context.Context, strategy.Call) error { return misbehave("before") },
			After:   func(context.Context, strategy.Call, strategy.Numbers) error { return misbehave("after") },
			OnError: func(context.Context, strategy.Call, error) { _ = misbehave("error") },
		}
		if scrambled {
			s, err := strategy.NewScrambler(testKey, 9)
			must(t, err)
			must(t, r.Use(s.Plugin()))
			bad := bad
			bad.Name, bad.Order, bad.After = "bad too", -1, nil
			bad.Replace = func(_ context.Context, _ strategy.Call, ids []hapax.ID) error {
				if rand.IntN(10) == 0 {
					ids[0] = 1
				} else {
					return nil
				}
				if rand.IntN(2) == 0 {
					panic("replace")
				}
				return errors.New("replace")
			}
			must(t, r.Use(bad))
		}
		l := open(t, r, "segment", hapax.Tag{Name: "t"})
		issued := make([][]hapax.ID, 8)
		stop := make(chan struct{})
		var wg, changes sync.WaitGroup
		changes.Go(func() {
			for on := true; ; on = !on {
				select {
				case <-stop:
					return
				default:
				}
				if on {
					_ = r.Use(bad)
				} else {
					_ = r.Switch("bad", rand.IntN(2) == 0)
					_ = r.Reorder("bad", rand.IntN(3))
					_ = r.Remove("bad")
				}
			}
		})
		for i := range issued {
			wg.Go(func() {
				dst := make([]hapax.ID, 10)
				for range 2000 {
					if i%2 == 0 {
						if id, err := l.Issuer().Next(t.Context()); err == nil {
							issued[i] = append(issued[i], id)
						}
						continue
					}
					n, _ := l.NextN(t.Context(), dst)
					issued[i] = append(issued[i], dst[:n]...)
				}
			})
		}
		wg.Wait()
		close(stop)
		changes.Wait()
		all := slices.Concat(issued...)
		slices.Sort(all)
		if n := len(all); n < 10_000 || len(slices.Compact(all)) != n {
			t.Errorf("scrambled %v: %d numbers, %d different", scrambled, n, len(slices.Compact(all)))
		}
	}
}
