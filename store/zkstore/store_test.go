package zkstore_test

import (
	"context"
	"crypto/rand"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/hapax-id/hapax/store/zkstore"
)

func TestMain(m *testing.M) {
	storetest.Main(m, func(ctx context.Context, url string) (storetest.Handle, error) {
		return zkstore.Open(ctx, url, zkstore.Options{})
	})
}

func TestConformance(t *testing.T) {
	url := testservers.ZooKeeper(t).URL + "/" + rand.Text()
	storetest.Run(t, storetest.Harness{
		URL:          url,
		Capabilities: storetest.Capabilities{Shared: true, Durable: true},
		Open:         func(t testing.TB) storetest.Handle { return open(t, url) },
	})
}

// open opens a handle that the test's end closes.
func open(t testing.TB, url string) *zkstore.Store {
	t.Helper()
	s, err := zkstore.Open(t.Context(), url, zkstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
