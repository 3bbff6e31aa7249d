package codec_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/codec"
	"github.com/hapax-id/hapax/store/memstore"
)

// issuerOf returns an issuer of texts over a store in memory.
func issuerOf(t *testing.T, spec string) *codec.Issuer {
	t.Helper()
	c, err := codec.Parse(spec, codec.Options{Tag: "t"})
	if err != nil {
		t.Fatal(err)
	}
	store := memstore.New()
	i := codec.Of(c, func(ctx context.Context, p codec.Period) (hapax.Issuer, error) {
		return hapax.NewSegment(ctx, store, "t@@"+p.String(), hapax.SegmentOptions{})
	})
	t.Cleanup(func() { _ = i.Close(context.Background()) })
	return i
}

func TestIssuer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := issuerOf(t, "{zone:UTC}{yyyy}{MM}{dd}-{seq:3}")
		time.Sleep(24*time.Hour - time.Second) // 2000-01-01
		var got []string
		for range 4 {
			for range 2 {
				text, err := i.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, text)
			}
			time.Sleep(500 * time.Millisecond)
		}
		want := []string{
			"20000101-001", "20000101-002", "20000101-003", "20000101-004",
			"20000102-001", "20000102-002", "20000102-003", "20000102-004",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if err := i.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := i.Next(t.Context()); !errors.Is(err, hapax.ErrClosed) {
			t.Errorf("after Close: got %v", err)
		}
	})
}

func TestIssuerIsUniqueOverTheEndOfAPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := issuerOf(t, "{zone:UTC}{yyyy}{MM}{dd}{HH}-{seq:4+}")
		time.Sleep(time.Hour - 5*time.Millisecond)
		var (
			mu   sync.Mutex // guards seen
			seen = map[string]bool{}
			wg   sync.WaitGroup
		)
		for range 8 {
			wg.Go(func() {
				for range 100 {
					text, err := i.Next(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if seen[text] {
						t.Errorf("%s was issued twice", text)
					}
					seen[text] = true
					mu.Unlock()
					time.Sleep(100 * time.Microsecond)
				}
			})
		}
		wg.Wait()
	})
}

func TestIssuerOpensAgain(t *testing.T) {
	c, err := codec.Parse("{id:2}", codec.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fail, store := errors.New("not now"), memstore.New()
	opened := 0
	i := codec.Of(c, func(ctx context.Context, p codec.Period) (hapax.Issuer, error) {
		if opened++; opened == 1 {
			return nil, fail
		}
		return hapax.NewSegment(ctx, store, "t"+p.String(), hapax.SegmentOptions{Start: 99})
	})
	if _, err := i.Next(t.Context()); !errors.Is(err, fail) {
		t.Errorf("got %v, want the cause", err)
	}
	if text, err := i.Next(t.Context()); text != "99" || err != nil {
		t.Errorf("got %q, %v", text, err)
	}
	if _, err := i.Next(t.Context()); !errors.Is(err, codec.ErrRange) {
		t.Errorf("got %v, want ErrRange", err)
	}
}

// The caller that opens a line has no more time: those who wait for the line have theirs.
func TestIssuerOutlivesItsOpener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := codec.Parse("{zone:UTC}{yyyy}{MM}{dd}-{seq:3}", codec.Options{Tag: "t"})
		if err != nil {
			t.Fatal(err)
		}
		store := memstore.New()
		i := codec.Of(c, func(ctx context.Context, p codec.Period) (hapax.Issuer, error) {
			select {
			case <-time.After(time.Second): // a slow store
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			return hapax.NewSegment(ctx, store, "t@@"+p.String(), hapax.SegmentOptions{})
		})
		defer i.Close(context.Background())
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := i.Next(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the opener: %v; want its deadline's error", err)
			}
		})
		synctest.Wait()
		for range 10 {
			wg.Go(func() {
				if _, err := i.Next(t.Context()); err != nil {
					t.Errorf("one that waits for the line: %v", err)
				}
			})
		}
		wg.Wait()
	})
}

// The caller that opens a line panics while it does: callers that wait for the line open it themselves.
func TestIssuerOutlivesAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := codec.Parse("{id:3}", codec.Options{Tag: "t"})
		if err != nil {
			t.Fatal(err)
		}
		store, opened := memstore.New(), 0
		i := codec.Of(c, func(ctx context.Context, _ codec.Period) (hapax.Issuer, error) {
			if opened++; opened == 1 {
				time.Sleep(time.Second) // meanwhile others wait
				panic("of the program that embeds it")
			}
			return hapax.NewSegment(ctx, store, "t", hapax.SegmentOptions{})
		})
		defer i.Close(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() {
				if recover() == nil {
					t.Error("the opener did not panic")
				}
			}()
			_, _ = i.Next(t.Context())
		})
		synctest.Wait()
		for range 10 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if _, err := i.Next(ctx); err != nil {
					t.Errorf("one that waits for the line: %v", err)
				}
			})
		}
		wg.Wait()
	})
}
