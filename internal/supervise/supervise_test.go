package supervise

import (
	"testing"
	"time"
)

// lent is a worker ID that is granted for some time yet, as of the moment in which it is asked.
type lent struct {
	left  time.Duration
	asked time.Duration
}

func (l *lent) Remaining() time.Duration {
	for l.asked = now(); now() == l.asked; { // so that no later reading is the same
	}
	return l.left
}

func (*lent) Lost() <-chan struct{} { return nil }

func (*lent) Err() error { return nil }

// SIGKILL is due a margin before the time granted is over, counted from before it was asked for: what
// comes between is used up.
func TestDeadlineCountsFromBeforeTheQuestion(t *testing.T) {
	const margin = 3 * time.Second
	for _, left := range []time.Duration{time.Hour, margin, 0, -time.Hour} {
		held := &lent{left: left}
		r := &run{Options: Options{Margin: margin}, held: held}
		began := now()
		due := r.deadline()
		if from := due - (left - margin); from < began || from > held.asked {
			t.Errorf("with %v left the deadline counts from %v after the beginning; want at most %v, when it was asked", left, from-began, held.asked-began)
		}
	}
}
