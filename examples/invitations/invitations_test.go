package invitations_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/examples/invitations"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/strategy"
)

var codes = []hapax.ID{7041, 1187, 9320, 4455, 2008, 6613, 3379, 8502, 5126, 1999}

// TestEachCodeOnce has three processes, as it were, share a list.
func TestEachCodeOnce(t *testing.T) {
	store := memstore.New()
	var mu sync.Mutex
	var got []hapax.ID
	var wg sync.WaitGroup
	for range 3 {
		r := strategy.NewRegistry(strategy.Options{})
		if err := r.Register("invitations", &invitations.List{Store: store, Codes: codes}); err != nil {
			t.Fatal(err)
		}
		quiet(t, r)
		line, err := r.Open(t.Context(), "invitations", hapax.Tag{Name: "beta"})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			dst := make([]hapax.ID, 2)
			for {
				n, err := line.NextN(t.Context(), dst)
				mu.Lock()
				got = append(got, dst[:n]...)
				mu.Unlock()
				if errors.Is(err, hapax.ErrLineExhausted) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	slices.Sort(got)
	// A position beyond the list is the only one that can be lost here.
	if want := slices.Sorted(slices.Values(codes)); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// quiet takes the place of the handler that logs.
func quiet(t *testing.T, r *strategy.Registry) {
	t.Helper()
	if err := r.OnReject("invitations", func(context.Context, strategy.Refusal) {}); err != nil {
		t.Fatal(err)
	}
}

func TestListWithARepetition(t *testing.T) {
	l := &invitations.List{Store: memstore.New(), Codes: []hapax.ID{5, 6, 5}}
	if _, err := l.Open(t.Context(), hapax.Tag{Name: "t"}); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("got %v", err)
	}
}

func Example() {
	ctx := context.Background()
	strategies := strategy.NewRegistry(strategy.Options{})
	list := &invitations.List{Store: memstore.New(), Codes: codes}
	if err := strategies.Register("invitations", list); err != nil {
		panic(err)
	}
	line, err := strategies.Open(ctx, "invitations", hapax.Tag{Name: "beta"})
	if err != nil {
		panic(err)
	}
	defer line.Close(ctx)
	for range 3 {
		code, err := line.Next(ctx)
		if err != nil {
			panic(err)
		}
		fmt.Println(code)
	}
	// Output:
	// 7041
	// 1187
	// 9320
}
