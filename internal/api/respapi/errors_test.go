package respapi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
)

// Every code has a translation, and every translation a code.
func TestEveryCodeIsTranslated(t *testing.T) {
	if got, want := slices.Sorted(maps.Keys(translations)), hapax.Codes(); !slices.Equal(got, want) {
		t.Errorf("translations %v, codes %v", got, want)
	}
	for code, tr := range translations {
		if tr.prefix != strings.ToUpper(tr.prefix) || tr.prefix == "" || strings.Contains(tr.prefix, " ") {
			t.Errorf("%s: the prefix %q is not one word in upper case", code, tr.prefix)
		}
	}
}

func TestErrorText(t *testing.T) {
	free := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"with details", fmt.Errorf("%w: %q", hapax.ErrTagNotFound, "orders"), `ERR tag_not_found: the tag does not exist: "orders"`},
		{"value", &hapax.ValueError{Field: "COUNT", Value: 0, Allowed: "1 to 9", Err: hapax.ErrInvalidArgument}, "ERR invalid_argument: invalid COUNT 0: want 1 to 9"},
		{"nothing of the inside", fmt.Errorf("%w: dial tcp 10.1.2.3:3306", hapax.ErrStoreUnavailable), "UNAVAILABLE store_unavailable: the store cannot be reached or did not answer in time"},
		{
			"a wait that ended", &hapax.WaitError{Cause: fmt.Errorf("%w: dial tcp 10.1.2.3:3306", hapax.ErrStoreUnavailable), Context: context.DeadlineExceeded},
			"UNAVAILABLE store_unavailable: the store cannot be reached or did not answer in time",
		},
		{
			"when a worker frees up", &hapax.NoWorkerError{Pool: "p", Size: 4, NextFree: free},
			`UNAVAILABLE no_worker: all 4 worker IDs of pool "p" are in use; the next one frees up at 2030-01-02T03:04:05Z`,
		},
		{"credentials", fmt.Errorf("%w: no such user", api.ErrUnauthenticated), errWrongPass},
		{"unknown", fmt.Errorf("open /etc/x"), "FAILED internal: an internal error"},
	} {
		if got := errorText(tt.err); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
