package patience

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestScale(t *testing.T) {
	for text, want := range map[string]float64{"": 1, "4": 4, "0.5": 0.5} {
		if got := mustScale(text); got != want {
			t.Errorf("%q is %v; want %v", text, got, want)
		}
	}
	for _, text := range []string{"0", "-1", "x", "NaN", "1001", "4x"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q is taken", text)
				}
			}()
			mustScale(text)
		}()
	}
	defer func(old float64) { scale = old }(scale)
	scale = 2.5
	if got := Scale(2 * time.Second); got != 5*time.Second {
		t.Errorf("2 s become %v; want 5 s", got)
	}
}

// A judge is a test whose end is looked at.
type judge struct {
	testing.TB
	name, said string
	skipped    bool
}

func (j *judge) Helper()      {}
func (j *judge) Name() string { return j.name }

func (j *judge) Fatalf(format string, args ...any) {
	j.said = fmt.Sprintf(format, args...)
	panic(j)
}

func (j *judge) Skipf(format string, args ...any) {
	j.skipped = true
	j.Fatalf(format, args...)
}

// ends says how a test ended that does f.
func ends(name string, f func(t testing.TB)) *judge {
	j := &judge{name: name}
	func() {
		defer func() {
			if r := recover(); r != nil && r != any(j) {
				panic(r)
			}
		}()
		f(j)
	}()
	return j
}

func wants(t *testing.T, got string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			t.Errorf("%q lacks %q", got, part)
		}
	}
	if len(parts) == 0 && got != "" {
		t.Errorf("it ended with %q; want it to pass", got)
	}
}

func TestWaitingEndsWithWhatWasSeen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, append(bytes.Repeat([]byte("old\n"), tail), "new words\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	logs := []fmt.Stringer{File(path), File(path + ".none"), bytes.NewBufferString("third log\n")}
	synctest.Test(t, func(t *testing.T) {
		three := func(n int) bool { return n == 3 }
		var n int
		count := func() (int, error) { n++; return n, nil }
		wants(t, ends("", func(t testing.TB) { Await(t, "three", count, three) }).said)
		if n != 3 {
			t.Errorf("three was seen after %d looks", n)
		}
		start := time.Now()
		got := ends("", func(t testing.TB) { Await(t, "three again", count, three, logs...) }).said
		wants(t, got, "not within", "three again", fmt.Sprint("last saw: ", n), path+" ends with:\n", "new words", ".none", "third log")
		if len(got) > 2*tail {
			t.Errorf("%d bytes; want tails only", len(got))
		}
		if took := time.Since(start); took < Long || took > Long+time.Second {
			t.Errorf("it took %v; want %v", took, Long)
		}
		broken := func() (int, error) { return 3, errors.New("no road") }
		wants(t, ends("", func(t testing.TB) { Await(t, "a road", broken, three) }).said, "a road", "last saw the error: no road")
		wants(t, ends("", func(t testing.TB) { Until(t, "the end", func() bool { return false }) }).said, "not within", "the end")
		if err := Try("the end", func() bool { return false }); err == nil || !strings.Contains(err.Error(), "the end") {
			t.Errorf("Try says %v", err)
		}
		if err := Try("now", func() bool { return true }); err != nil {
			t.Error(err)
		}
	})
}

// A machine that stood still for an hour says nothing about the test.
func TestStandstillIsNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		wants(t, ends("", func(t testing.TB) {
			Until(t, "the third look", func() bool { Slow(time.Hour); n++; return n == 3 })
		}).said)
	})
}

func TestChannels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := make(chan int)
		go func() { Slow(Long / 2); c <- 7 }()
		wants(t, ends("", func(t testing.TB) {
			if got := Receive(t, "seven", c); got != 7 {
				t.Fatalf("got %d", got)
			}
		}).said)
		wants(t, ends("", func(t testing.TB) { Receive(t, "eight", c, bytes.NewBufferString("why")) }).said, "not within", "eight", "why")
		wants(t, ends("", func(t testing.TB) { Closed(t, "its end", c) }).said, "not within", "its end")
		go func() { c <- 1; c <- 2; close(c) }()
		wants(t, ends("", func(t testing.TB) { Closed(t, "its end", c) }).said)
		wants(t, ends("", func(t testing.TB) { Receive(t, "nine", c) }).said, "closed: nine")
	})
}

func TestSoak(t *testing.T) {
	for name, c := range map[string]struct {
		set, test string
		skipped   bool
		want      []string
	}{
		"off":        {"", "TestStormSoak", true, []string{"a soak test (a storm)", "make soak", SoakVariable + "=1"}},
		"zero":       {"0", "TestStormSoak", true, []string{"make soak"}},
		"a part":     {"0", "TestStormSoak/mysql", true, []string{"make soak"}},
		"on":         {"1", "TestStormSoak/mysql", false, nil},
		"wrong name": {"1", "TestStorm/Soak", false, []string{"must end in Soak"}},
		"nonsense":   {"yes", "TestStormSoak", false, []string{"invalid " + SoakVariable, `"yes"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(SoakVariable, c.set)
			j := ends(c.test, func(t testing.TB) { Soak(t, "a storm") })
			if j.skipped != c.skipped {
				t.Errorf("skipped: %v; want %v", j.skipped, c.skipped)
			}
			wants(t, j.said, c.want...)
			if got := Soaking(); got != (c.set == "1") {
				t.Errorf("soaking: %v", got)
			}
		})
	}
}
