package etcdstore_test

import (
	"context"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/etcdstore"
	"github.com/hapax-id/hapax/store/internal/coordtest"
)

var suite = coordtest.Driver{
	Server:  testservers.Etcd,
	Shared:  testservers.SharedEtcd,
	Cluster: testservers.EtcdCluster,
	Open: func(ctx context.Context, url string, warn func(code, message string)) (driver.Store, error) {
		s, err := etcdstore.Open(ctx, url, etcdstore.Options{Warn: warn, Timeout: patience.Call})
		if err != nil {
			return nil, err
		}
		return s, nil
	},
}

func TestTrouble(t *testing.T) { t.Parallel(); coordtest.Run(t, suite) }

func BenchmarkAllocate(b *testing.B) { coordtest.Benchmark(b, suite) }
