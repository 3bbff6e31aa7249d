package mongostore

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/event"
)

// The server is asked who it is after each new connection, and not otherwise.
func TestAskedAfterEachConnection(t *testing.T) {
	p := &primaries{at: -1}
	monitor := p.monitor()
	asked, answer, fails := 0, "a", error(nil)
	expect := func(want string, times int) {
		t.Helper()
		asked = 0
		got, err := p.after(func() (string, error) { asked++; return answer, fails })
		if got != want || asked != times || !errors.Is(err, fails) {
			t.Errorf("%q after %d questions, %v; want %q after %d", got, asked, err, want, times)
		}
	}
	expect("a", 1)
	expect("a", 0)
	monitor.Event(&event.PoolEvent{Type: event.ConnectionCheckedOut})
	expect("a", 0)
	monitor.Event(&event.PoolEvent{Type: event.ConnectionCreated})
	fails = errors.New("down")
	expect("", 1)
	fails, answer = nil, "b"
	expect("b", 1)
	expect("b", 0)

	p = &primaries{at: -1} // of a client that is not ours
	expect("b", 1)
	expect("b", 1)
}
