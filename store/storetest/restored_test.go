package storetest

import (
	"cmp"
	"context"
	"testing"

	"github.com/hapax-id/hapax/store/driver"
)

func TestRunRestored(t *testing.T) {
	for name, v := range map[string]struct {
		made  func(ctx context.Context, before string) string
		right bool
	}{
		"as it should be": {func(ctx context.Context, before string) string {
			return cmp.Or(before, driver.NewStoreID(ctx))
		}, true},
		"a random one":           {func(_ context.Context, before string) string { return cmp.Or(before, driver.NewStoreID(t.Context())) }, false},
		"whatever it is told":    {func(ctx context.Context, _ string) string { return driver.NewStoreID(ctx) }, false},
		"another for each start": {func(context.Context, string) string { return driver.NewStoreID(t.Context()) }, false},
	} {
		w, id := &watch{TB: t}, ""
		RunRestored(w, func(ctx context.Context) (Handle, error) {
			id = v.made(ctx, id)
			s, is := newTwin(), id
			s.storeID = func(context.Context) (string, error) { return is, nil }
			return s, nil
		})
		if right := len(w.failures) == 0; right != v.right {
			t.Errorf("%s: failures are %q", name, w.failures)
		}
	}
}
