// Package patience is how tests wait: for a state, never for a duration. One generous
// bound, Long, fits all of them; HAPAX_TEST_TIMESCALE multiplies it on a slow machine. A
// test that passes never waits for it, and one that fails says what it saw last, with the
// tails of the logs that it was given.
//
// A short time-out that a test wants to see expire does not belong here, nor does a test
// that only passes on a quiet machine or by luck: Soak leaves that to make soak.
package patience

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Variable names the setting, a number above 0.
const Variable = "HAPAX_TEST_TIMESCALE"

// SoakVariable and InteropVariable name the switches of make soak and make interop: 1 runs what
// calls Soak, or Interop.
const (
	SoakVariable    = "HAPAX_TEST_SOAK"
	InteropVariable = "HAPAX_TEST_INTEROP"
)

// Soak tests wait longer: for crowds.
var scale = mustScale(os.Getenv(Variable)) * map[bool]float64{false: 1, true: 5}[Soaking()]

var (
	// Long is for events that must happen at some time: a process to start, a store to be
	// back, a connection to end.
	Long = Scale(2 * time.Minute)

	// Call is for a call to a store or a server that works; also the time-out to open
	// a store with whose tests count on answers.
	Call = Scale(30 * time.Second)
)

const (
	// The first looks are so far apart; later ones more, a tenth of the time that has
	// passed, and all of them three times as long as the last one took: some start a
	// process, and a wait is not to be the load that it waits out.
	pace, slowest, costly = 5 * time.Millisecond, 200 * time.Millisecond, time.Second / 2

	// looks is how many there are at least: whoever was stopped as long as Long, as a
	// whole machine may be, still gets a fair number.
	looks = 100

	tail = 4 << 10
)

// Scale returns the time-out that fits this machine, for a machine that has little
// else to do.
func Scale(d time.Duration) time.Duration { return time.Duration(float64(d) * scale) }

func mustScale(text string) float64 {
	if text == "" {
		return 1
	}
	s, err := strconv.ParseFloat(text, 64)
	if err != nil || !(s > 0 && s <= 1000) {
		panic(fmt.Sprintf("invalid %s %q: want a number above 0, up to 1000", Variable, text))
	}
	return s
}

// Dial connects within Call, for clients that give a connection less of their own accord.
func Dial(network, address string, _ time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: Call}
	return d.DialContext(context.Background(), network, address)
}

// Until asks again and again until so, and ends the test if that takes longer than
// Long, with the tails of the logs.
func Until(t testing.TB, what string, so func() bool, logs ...fmt.Stringer) {
	t.Helper()
	Await(t, what, func() (bool, error) { return so(), nil }, func(is bool) bool { return is }, logs...)
}

// Await looks again and again until it sees something that is so, and returns that. An error of look
// is one more thing seen. If it takes longer than Long, the test ends with the last thing seen
// last, and the tails of the logs.
func Await[T any](t testing.TB, what string, look func() (T, error), so func(T) bool, logs ...fmt.Stringer) T {
	t.Helper()
	start := time.Now()
	for n := 1; ; n++ {
		began := time.Now()
		v, err := look()
		if err == nil && so(v) {
			return v
		}
		if time.Since(start) > Long && n >= looks {
			if err != nil {
				t.Fatalf("not within %v: %s; last saw the error: %v%s", Long, what, err, tails(logs))
			}
			t.Fatalf("not within %v: %s; last saw: %+v%s", Long, what, v, tails(logs))
		}
		pauseAfter(start, began)
	}
}

func pauseAfter(start, looked time.Time) {
	byAge := min(max(time.Since(start)/10, pace), slowest)
	byCost := min(3*time.Since(looked), costly)
	time.Sleep(max(byAge, byCost))
}

// Try asks again and again until so, outside a test's own goroutine: in a TestMain, or
// beside others. Its error says that this took longer than Long.
func Try(what string, so func() bool) error {
	start := time.Now()
	for n := 1; ; n++ {
		began := time.Now()
		if so() {
			return nil
		}
		if time.Since(start) > Long && n >= looks {
			return fmt.Errorf("not within %v: %s", Long, what)
		}
		pauseAfter(start, began)
	}
}

// Receive returns what comes from c, and ends the test if that takes longer than Long or c
// is closed without.
func Receive[T any](t testing.TB, what string, c <-chan T, logs ...fmt.Stringer) T {
	t.Helper()
	v, ok := receive(t, what, c, logs)
	if !ok {
		t.Fatalf("closed: %s%s", what, tails(logs))
	}
	return v
}

// Closed waits until c is closed, and skips what comes before.
func Closed[T any](t testing.TB, what string, c <-chan T, logs ...fmt.Stringer) {
	t.Helper()
	for ok := true; ok; {
		_, ok = receive(t, what, c, logs)
	}
}

func receive[T any](t testing.TB, what string, c <-chan T, logs []fmt.Stringer) (T, bool) {
	t.Helper()
	timer := time.NewTimer(Long)
	defer timer.Stop()
	select {
	case v, ok := <-c:
		return v, ok
	case <-timer.C:
	}
	// Both may be ready when this goroutine is run again.
	select {
	case v, ok := <-c:
		return v, ok
	default:
		t.Fatalf("not within %v: %s%s", Long, what, tails(logs))
		panic("unreachable")
	}
}

// Again is the pause between two looks, for a loop that counts its rounds.
func Again() { time.Sleep(pace) }

// Slow is the time that a part takes which a test made slow: a store that answers late, a
// network with a delay, a client that works for a while. No verdict may hang on how long
// it is.
func Slow(d time.Duration) { time.Sleep(d) }

// Soaking says whether make soak runs.
func Soaking() bool { return os.Getenv(SoakVariable) == "1" }

// Soak leaves the test to make soak unless that is what runs, and why says what keeps it out
// of make test: chance, a crowd, a long outage, the need for a quiet machine. make soak finds
// such tests by their names, which end in Soak.
func Soak(t testing.TB, why string) { leave(t, "Soak", SoakVariable, why) }

// Interop leaves the test to make interop unless that is what runs, and what says what it
// starts there: a JVM, a browser. make interop finds such tests by their names, which end in Interop.
func Interop(t testing.TB, what string) { leave(t, "Interop", InteropVariable, what) }

func leave(t testing.TB, kind, variable, why string) {
	t.Helper()
	if top, _, _ := strings.Cut(t.Name(), "/"); !strings.HasSuffix(top, kind) {
		t.Fatalf("the name of %s must end in %s: make %s finds it by that", top, kind, strings.ToLower(kind))
	}
	switch set := os.Getenv(variable); set {
	case "1":
	case "", "0":
		t.Skipf("%s: make %s, or %s=1", why, strings.ToLower(kind), variable)
	default:
		t.Fatalf("invalid %s %q: want 1 to run such tests, or nothing", variable, set)
	}
}

// File is a log on disk.
type File string

// String returns the end of the file.
func (f File) String() string {
	text, err := tailOf(string(f))
	if err != nil {
		return err.Error()
	}
	return text
}

func tailOf(path string) (_ string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	buf := make([]byte, tail)
	n, err := f.ReadAt(buf, max(0, info.Size()-tail))
	if n == 0 && info.Size() > 0 {
		return "", err
	}
	return string(buf[:n]), nil
}

func tails(logs []fmt.Stringer) string {
	var b strings.Builder
	for i, log := range logs {
		text := strings.TrimRight(log.String(), "\n")
		if len(text) > tail {
			text = "…" + text[len(text)-tail:]
		}
		if name, ok := log.(File); ok {
			fmt.Fprintf(&b, "\n--- %s ends with:\n%s", string(name), text)
		} else {
			fmt.Fprintf(&b, "\n--- log %d ends with:\n%s", i+1, text)
		}
	}
	return b.String()
}
