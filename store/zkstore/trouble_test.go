package zkstore_test

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/internal/coordtest"
	"github.com/hapax-id/hapax/store/zkstore"
)

var suite = coordtest.Driver{
	Server:  testservers.ZooKeeper,
	Shared:  testservers.SharedZooKeeper,
	Cluster: testservers.ZooKeeperEnsemble,
	Open: func(ctx context.Context, url string, warn func(code, message string)) (driver.Store, error) {
		s, err := zkstore.Open(ctx, url, zkstore.Options{Warn: warn, Timeout: patience.Call})
		if err != nil {
			return nil, err
		}
		return s, nil
	},
	Frame: func(sent []byte) (int, bool) { // a length, and the request's number, of which -2 is a ping
		if len(sent) < 8 {
			return 0, false
		}
		return 4 + int(binary.BigEndian.Uint32(sent)), int32(binary.BigEndian.Uint32(sent[4:])) != -2
	},
}

func TestTrouble(t *testing.T) { t.Parallel(); coordtest.Run(t, suite) }

func BenchmarkAllocate(b *testing.B) { coordtest.Benchmark(b, suite) }
