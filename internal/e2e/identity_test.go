package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
)

// A worker ID that a wrong clock has poisoned is shown, mended only when asked,
// and stays out of use until the clock passes its mark, in a data directory and
// through a server alike.
func TestWorkersFix(t *testing.T) {
	t.Parallel()
	for _, through := range []string{"data directory", "server"} {
		t.Run(through, func(t *testing.T) {
			dir := t.TempDir()
			one := []string{"--pools", "{default: {workers: 5}}"}
			wrong := serve(t, dir, []string{"HAPAX_TEST_CLOCK_OFFSET=8760h"}, one...)
			mustTake(t, wrong, "snowflake", 1)
			wrong.kill()
			var s *serving
			if through == "server" {
				s = serve(t, dir, nil, one...)
				if _, err := take(http.DefaultClient, s.url, "snowflake", 1); err == nil || !strings.Contains(err.Error(), `"worker_poisoned"`) {
					t.Errorf("with a poisoned worker the error is %v", err)
				}
			}
			data := []string{"--data", "hapax-data"}
			show := func() (w struct {
				State string
				Until time.Time
				Token int64
			},
			) {
				t.Helper()
				text := ok(t, dir, append([]string{"workers", "show", "default", "5", "--json"}, data...)...)
				if err := json.Unmarshal([]byte(text), &w); err != nil {
					t.Fatalf("%v: %s", err, text)
				}
				return w
			}
			before := show()
			if before.State != "poisoned" || time.Until(before.Until) < 364*24*time.Hour {
				t.Errorf("before the fix: %+v", before)
			}
			r := run(t, dir, append([]string{"workers", "fix"}, data...)...)
			if r.code != 0 || !strings.HasPrefix(r.out, "would retire\tdefault\t5\t") || !strings.Contains(r.out, before.Until.Format(time.RFC3339)) || !strings.Contains(r.err, "--apply") {
				t.Errorf("fix without --apply: %+v", r)
			}
			if now := show(); now != before {
				t.Errorf("a look has changed %+v to %+v", before, now)
			}
			if got := ok(t, dir, append([]string{"workers", "fix", "--apply"}, data...)...); !strings.HasPrefix(got, "retired\tdefault\t5\t") {
				t.Errorf("fix --apply: %q", got)
			}
			if after := show(); after.State != "retired" || !after.Until.Equal(before.Until) || after.Token <= before.Token {
				t.Errorf("after the fix: %+v, before %+v", after, before)
			}
			if r := run(t, dir, append([]string{"workers", "fix", "--json"}, data...)...); r.code != 0 || r.out != "" || !strings.Contains(r.err, "nothing to fix") {
				t.Errorf("fix when there is nothing to fix: %+v", r)
			}
			if s == nil {
				s = serve(t, dir, nil, one...)
			}
			// For a second an earlier refusal answers for the store.
			patience.Await(t, "with the only worker retired a request is refused with the time when it is free", func() (string, error) {
				_, err := take(http.DefaultClient, s.url, "snowflake", 1)
				return fmt.Sprint(err), nil
			}, func(said string) bool {
				return strings.Contains(said, `"no_worker"`) && strings.Contains(said, before.Until.Format("2006-01-02T15:04"))
			}, s)
		})
	}
}

// The identity settles the worker ID; one that is told nothing useful does not
// start, and says which setting it is about.
func TestIdentitySetting(t *testing.T) {
	t.Parallel()
	pools := func(text string) []string { return []string{"--pools", "{default: {" + text + "}}"} }
	for name, c := range map[string]struct {
		pool string
		env  []string
		want int
	}{
		"fixed":         {"identity: 'fixed:7'", nil, 7},
		"env":           {"identity: 'env:WORKER_ID'", []string{"WORKER_ID=42"}, 42},
		"list":          {"identity: 'list:11,9'", nil, 9},
		"reserved part": {"workers: 924-1023", nil, 924},
		"split":         {"split: 'service:8:1,rack:2:1', parts: {service: 1, rack: 'env:RACK'}", []string{"RACK=1"}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := serve(t, dir, c.env, pools(c.pool)...)
			mustTake(t, s, "snowflake", 1)
			want := fmt.Sprintf("default\t%d\t", c.want)
			if got := ok(t, dir, "workers", "list", "--data", "hapax-data"); !strings.HasPrefix(got, want) {
				t.Errorf("the workers are %q, want %q", got, want)
			} else if name == "split" && !strings.Contains(got, "\tservice=1,rack=1\theld\t") {
				t.Errorf("the workers are %q", got)
			}
			if code := s.stop(); code != 0 {
				t.Errorf("the exit code is %d", code)
			}
		})
	}
	for name, c := range map[string]struct {
		pool string
		env  []string
		want string
	}{
		"unset":       {"identity: 'env:WORKER_ID'", nil, "pools.default.identity"},
		"unparsable":  {"identity: 'env:WORKER_ID'", []string{"WORKER_ID=one"}, "pools.default.identity"},
		"unknown":     {"identity: random", nil, "pools.default.identity"},
		"no ordinal":  {"identity: 'statefulset:100000', layout: leaf", nil, "pools.default.identity"},
		"not listed":  {"identity: 'address:203.0.113.9'", nil, "pools.default.identity"},
		"part unset":  {"split: 'a:5,b:5', parts: {a: 'env:RACK'}", nil, "pools.default.parts.a"},
		"split width": {"layout: leaf, split: 'a:5,b:4'", nil, "pools.default.split"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			args := append([]string{"serve", "--http", "127.0.0.1:0"}, pools(c.pool)...)
			r := runWith(t, dir, "", c.env, args...)
			if r.code != 2 || !strings.Contains(r.err, c.want) {
				t.Errorf("exit code %d: %s", r.code, r.err)
			}
		})
	}
}

// Each start uses up a worker ID, and the last error tells how many starts there
// were.
func TestDisposable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{"--pools", "{default: {identity: disposable, workers: 0-2}}"}
	for start := range 3 {
		s := serve(t, dir, nil, args...)
		mustTake(t, s, "snowflake", 1)
		want := fmt.Sprintf("default\t%d\t", start)
		if got := ok(t, dir, "workers", "list", "--data", "hapax-data"); !strings.Contains(got, want) {
			t.Errorf("start %d: the workers are %q", start+1, got)
		}
		s.await(fmt.Sprintf(`"left":%d`, 2-start))
		if start%2 == 0 {
			s.kill()
		} else {
			s.stop()
		}
	}
	s := serve(t, dir, nil, args...)
	if _, err := take(http.DefaultClient, s.url, "snowflake", 1); err == nil || !strings.Contains(err.Error(), "this was start 4") {
		t.Errorf("with every worker ID used up the error is %v", err)
	}
}
