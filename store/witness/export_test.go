package witness

import (
	"os"
	"testing"

	"github.com/hapax-id/hapax/store/internal/fileid"
)

// AwaitTick waits until the system's clock of files has advanced, so that a copy of a file
// was not made at the same time as the file.
func AwaitTick(t *testing.T, path string) {
	t.Helper()
	born := func(path string) int64 {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		id, err := fileid.Of(f)
		if err != nil {
			t.Fatal(err)
		}
		return id.Born
	}
	probe := path + ".probe"
	for was := born(path); was != 0 && born(probe) == was; {
		if err := os.Remove(probe); err != nil {
			t.Fatal(err)
		}
	}
	_ = os.Remove(probe)
}

// OneStepAtATime has all allocations of a node wait while a step is under way.
func (g *Guarded) OneStepAtATime() {
	g.allocations = g.batchAllocations(1)
}

// CountSyncs counts how often a witness is made durable from now on.
func CountSyncs(w *Witness) (syncs func() int) {
	before := w.log.syncs.Load()
	return func() int { return int(w.log.syncs.Load() - before) }
}

// SetUptime replaces the machine's clock for a test.
func SetUptime(t *testing.T, f func() (boot string, ms int64)) {
	old := uptime
	uptime = f
	t.Cleanup(func() { uptime = old })
}

// HowEnded returns how a row has ended, as a witness has surveyed it; empty: it has not, or
// it was not surveyed.
func HowEnded(w *Witness, row string) string {
	known, _ := w.peersKnown()
	return known[row].How
}
