package server

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// idleHeap is how many bytes of garbage there are at least before it is collected. By itself,
// Go collects when there is as much garbage as is in use, which in a server is little: calls
// over gRPC then take a tenth more processor time. A server that has more in use than this
// collects as any program does.
const idleHeap = 16 << 20

// tuneCollector has garbage collected less often, unless GOGC or GOMEMLIMIT tell how.
var tuneCollector = sync.OnceFunc(func() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		afterCollection(100)
	}
})

// afterCollection sets how much garbage may gather before the next collection, in per cent of all that
// the last one found in use, and is called again after the next.
func afterCollection(was int) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	percent := int(max(100, 100*idleHeap/max(live[0].Value.Uint64(), 1<<20)))
	if percent != was {
		debug.SetGCPercent(percent)
	}
	type cycle struct{ _ [4]*int } // is garbage from the beginning
	runtime.AddCleanup(new(cycle), afterCollection, percent)
}
