package redismongo

import (
	"errors"
	"testing"

	"github.com/hapax-id/hapax/store/memstore"
)

// open returns who issues, the old service or the store of a command: not both.
func (o *oldSystem) open(c *command) (old, native bool) {
	o.t.Helper()
	for range 2 {
		old, native = o.take(30) == 30, c.issues()
	}
	if old && native {
		o.t.Fatal("the old service and the store issue at the same time")
	}
	if r := c.again().found[tagName]; native && (r.openHash || r.openDocument) {
		o.t.Fatalf("the store issues beside the hash and the document %+v", r)
	}
	return old, native
}

// At every change of a move, also of one that goes on where another was killed, the way back of the same
// store runs from its reading to its end, and the reverse: never do both issue, no number is issued
// twice, and either command goes on from there.
func TestOpposed(t *testing.T) {
	system := oldSystems(t)
	ofMove := []string{beforeHold, afterHold, beforeHash, afterHash, beforeTag, afterTag}
	for _, killed := range []string{"", afterHold, afterHash, beforeTag} {
		for _, undo := range []bool{false, true} {
			points := ofMove
			if undo {
				points = []string{beforeDelete, afterDelete, beforeRenew, afterRenew, beforeReopen, afterReopen}
			}
			if undo && killed == afterHold {
				continue // there is nothing to go back from
			}
			for _, at := range points {
				if killed != "" && undo && at == afterDelete {
					continue // the tag is deleted already
				}
				t.Run(map[bool]string{false: "move", true: "way back"}[undo]+" "+at+", killed "+killed, func(t *testing.T) {
					oppose(t, system(t, false), undo, at, killed)
				})
			}
		}
	}
}

func oppose(t *testing.T, o *oldSystem, undo bool, at, killed string) {
	a := o.command("A", memstore.New())
	var err error
	switch {
	case killed != "":
		if err := a.runInterrupted(false, killed, func() error { return errKilled }); !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
	case undo:
		err = a.run(false, a.store)
	}
	if err != nil {
		t.Fatal(err)
	}
	o.open(a)
	var other error
	wrong := a.again().runInterrupted(undo, at, func() error {
		other = a.again().run(!undo, a.store)
		o.open(a)
		return nil
	})
	o.open(a)
	for _, back := range []bool{!undo, undo, !undo} {
		err := a.again().run(back, a.store)
		if old, native := o.open(a); old != back || native == back {
			t.Errorf("after %v, and its opposite %v, undo %v: %v, and the old service issues: %v, the store: %v", wrong, other, back, err, old, native)
		}
	}
}
