package storetest

import (
	"context"
	"crypto/rand"
	"testing"

	"github.com/hapax-id/hapax/store/driver"
)

// RunRestored proves of a store that is not there yet that it is made with the identity of
// [driver.WithFounding], that it keeps it, and that one that is there takes no other.
func RunRestored(t testing.TB, open func(ctx context.Context) (Handle, error)) {
	t.Helper()
	first := rand.Text()
	for _, asked := range []string{first, "", rand.Text()} {
		ctx := t.Context()
		if asked != "" {
			ctx = driver.WithFounding(ctx, driver.Founding{ID: asked})
		}
		h, err := open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		got, err := h.StoreID(t.Context())
		h.Close()
		if err != nil || got != first {
			t.Errorf("opened with %q, the store made as %q is %q, %v", asked, first, got, err)
		}
	}
}
