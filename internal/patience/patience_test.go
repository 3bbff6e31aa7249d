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

func TestLeftOut(t *testing.T) {
	soak := func(t testing.TB) { Soak(t, "a storm") }
	interop := func(t testing.TB) { Interop(t, "a JVM") }
	for name, c := range map[string]struct {
		leave               func(testing.TB)
		variable, set, test string
		skipped             bool
		want                []string
	}{
		"off":           {soak, SoakVariable, "", "TestStormSoak", true, []string{"a storm", "make soak", SoakVariable + "=1"}},
		"zero":          {soak, SoakVariable, "0", "TestStormSoak", true, []string{"make soak"}},
		"a part":        {soak, SoakVariable, "0", "TestStormSoak/mysql", true, []string{"make soak"}},
		"on":            {soak, SoakVariable, "1", "TestStormSoak/mysql", false, nil},
		"wrong name":    {soak, SoakVariable, "1", "TestStorm/Soak", false, []string{"must end in Soak"}},
		"nonsense":      {soak, SoakVariable, "yes", "TestStormSoak", false, []string{"invalid " + SoakVariable, `"yes"`}},
		"interop off":   {interop, InteropVariable, "", "TestJavaInterop", true, []string{"a JVM", "make interop", InteropVariable + "=1"}},
		"interop on":    {interop, InteropVariable, "1", "TestJavaInterop", false, nil},
		"another's on":  {interop, SoakVariable, "1", "TestJavaInterop", true, []string{"make interop"}},
		"another's end": {interop, InteropVariable, "1", "TestJavaSoak", false, []string{"must end in Interop"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(SoakVariable, "")
			t.Setenv(InteropVariable, "")
			t.Setenv(c.variable, c.set)
			j := ends(c.test, c.leave)
			if j.skipped != c.skipped {
				t.Errorf("skipped: %v; want %v", j.skipped, c.skipped)
			}
			wants(t, j.said, c.want...)
			if got, want := Soaking(), c.variable == SoakVariable && c.set == "1"; got != want {
				t.Errorf("soaking: %v", got)
			}
		})
	}
}
