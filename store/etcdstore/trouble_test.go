package etcdstore_test

import (
	"context"
	"encoding/binary"
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
	Frame: func(sent []byte) (int, bool) { // of HTTP/2: a length of 24 bits, and the kind, of which 1 is headers
		if len(sent) < 9 {
			return 0, false
		}
		return 9 + int(sent[0])<<16 + int(binary.BigEndian.Uint16(sent[1:])), sent[3] == 1
	},
}

func TestTrouble(t *testing.T) { t.Parallel(); coordtest.Run(t, suite) }

func BenchmarkAllocate(b *testing.B) { coordtest.Benchmark(b, suite) }
