package witness

import (
	"testing"
	"time"
)

// A call that was let through just before the node was made to join again has no row to
// go under, and takes the process with it no more than that.
func TestPulseWithoutARow(t *testing.T) {
	g := &Guarded{opts: Options{Clock: func() time.Duration { return 0 }}}
	if p := g.pulse(true); p.Row != "" || p.Now.Grants != 0 {
		t.Errorf("the pulse is %+v", p)
	}
}
