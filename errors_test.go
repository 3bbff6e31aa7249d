package hapax_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
)

// The wait doubles from 5 ms to 650 ms, is random, and never overflows.
func TestBackoff(t *testing.T) {
	if d := hapax.Backoff(0); d != 0 {
		t.Errorf("without a failure it is %v", d)
	}
	around := 5 * time.Millisecond
	for failures := 1; failures <= 100; failures++ {
		seen := map[time.Duration]bool{}
		for range 10 {
			d := hapax.Backoff(failures)
			if d < around/2 || d >= around/2+around {
				t.Errorf("after %d failures it is %v, want %v to %v", failures, d, around/2, around/2+around)
			}
			seen[d] = true
		}
		if len(seen) == 1 {
			t.Errorf("after %d failures it is always the same", failures)
		}
		around = min(2*around, 650*time.Millisecond)
	}
	if d := hapax.Backoff(math.MaxInt); d < 325*time.Millisecond || d >= 975*time.Millisecond {
		t.Errorf("after very many failures it is %v", d)
	}
}

func TestMessage(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{hapax.ErrClosed, "the issuer or store is closed"},
		{fmt.Errorf("%w: store %q", hapax.ErrClosed, "a"), `the issuer or store is closed: store "a"`},
		{&hapax.ValueError{Field: "n", Value: 0, Allowed: "1", Err: hapax.ErrInvalidArgument}, "invalid n 0: want 1"},
		{errors.New("plain"), "plain"},
		{errors.New("connect: failed to connect to `user=a`:\n\t10.0.0.1: refused\n\t10.0.0.1: refused\n\t10.0.0.2: no route\n"), "connect: failed to connect to `user=a`: 10.0.0.1: refused; 10.0.0.2: no route"},
		{errors.Join(errors.New("a"), errors.New("b  c"), hapax.ErrClosed), "a; b  c; the issuer or store is closed"},
		{fmt.Errorf("leaf.properties: %w", fmt.Errorf("%w: x", hapax.ErrClosed)), "leaf.properties: the issuer or store is closed: x"},
	} {
		if got := hapax.Message(tt.err); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// What passes by itself is told from what somebody has to mend.
func TestIsTransient(t *testing.T) {
	for err, want := range map[error]bool{
		hapax.ErrStoreUnavailable: true, hapax.ErrNoWorker: true, hapax.ErrLeaseLost: true, api.ErrLimitExceeded: true,
		hapax.ErrRefillPending: true, hapax.ErrTickExhausted: true,
		hapax.ErrTagDeleted: false, hapax.ErrStoreRolledBack: false, hapax.ErrFenced: false, hapax.ErrInvalidTag: false, hapax.ErrClosed: false,
		errors.New("plain"): false, nil: false,
		&hapax.NoWorkerError{Pool: "p"}: true,
	} {
		if got := hapax.IsTransient(err); got != want {
			t.Errorf("%v: %t, want %t", err, got, want)
		}
	}
}
