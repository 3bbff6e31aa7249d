package witness

import (
	"testing"
	"time"

	"github.com/hapax-id/hapax/store/driver"
)

// Rows that were read before a process began to wait for all, or before others were noted,
// come late: a row that has not advanced since must not look as if it had.
func TestLateRows(t *testing.T) {
	now := time.Minute
	g := &Guarded{witness: &Witness{state: newRecord()}, opts: Options{Heartbeat: time.Second, Clock: func() time.Duration { return now }}, peers: map[string]*sighting{}}
	row := rowName(1, "a")
	note := func(count int64, since time.Duration) bool {
		t.Helper()
		if _, err := g.noteRows(map[string][]byte{row: driver.Beat{Count: count}.Encode()}, since); err != nil {
			t.Fatal(err)
		}
		now += time.Second
		return g.peers[row].met
	}
	note(4, now)
	before := now
	now += time.Second
	g.awaitOthersLocked()
	if note(5, now) {
		t.Error("what a row says at first is from before")
	}
	if note(4, before); note(5, now) {
		t.Error("a row that was read before makes the same beat count as another one")
	}
	if !note(6, now) {
		t.Error("a beat that was made since does not count")
	}
}
