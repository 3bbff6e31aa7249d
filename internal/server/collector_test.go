package server

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
)

// Where little is in use garbage is collected less often than by itself, and where much is
// as often.
func TestTuneCollector(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	percent := func() uint64 {
		runtime.GC()
		now := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(now)
		return now[0].Value.Uint64()
	}
	tuneCollector()
	patience.Until(t, "the collector comes less often", func() bool { return percent() > 100 })
	much := make([]*[1 << 20]byte, 64)
	for i := range much {
		much[i] = new([1 << 20]byte)
	}
	patience.Until(t, "it comes as often as by itself", func() bool { return percent() == 100 })
	runtime.KeepAlive(much)
}
