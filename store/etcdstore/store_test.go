package etcdstore_test

import (
	"context"
	"crypto/rand"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/etcdstore"
	"github.com/hapax-id/hapax/store/storetest"
)

func TestMain(m *testing.M) {
	storetest.Main(m, func(ctx context.Context, url string) (storetest.Handle, error) {
		return etcdstore.Open(ctx, url, etcdstore.Options{})
	})
}

func TestConformance(t *testing.T) {
	url := testservers.Etcd(t).URL + "/" + rand.Text()
	storetest.Run(t, storetest.Harness{
		URL:          url,
		Capabilities: storetest.Capabilities{Shared: true, Durable: true},
		Open:         func(t testing.TB) storetest.Handle { return open(t, url) },
	})
}

// open opens a handle that the test's end closes.
func open(t testing.TB, url string) *etcdstore.Store {
	t.Helper()
	s, err := etcdstore.Open(t.Context(), url, etcdstore.Options{})
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
