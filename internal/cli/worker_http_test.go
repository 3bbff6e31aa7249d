package cli

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWorkerAnswers(t *testing.T) {
	held, ok := answeredWorker{17, "2026-11-22T11:22:33.444Z", 1795346553444}, true
	now := func() (answeredWorker, bool) { return held, ok }
	plain, zitadel, cosid := workerHandler(now, generator{}), workerHandler(now, generator{text: zitadelText}), workerHandler(now, generator{isClaimed: true})
	told := `{"worker":17,"until":"2026-11-22T11:22:33.444Z","until_ms":1795346553444}` + "\n"
	nobody := "hapax: invalid holder of 0 bytes: want /?holder=NAME, 1 to 128 bytes that no other program has\n"
	for _, c := range []struct {
		name    string
		handler http.Handler
		method  string
		url     string
		held    bool
		status  int
		body    string
	}{
		{"JSON", plain, "GET", "http://127.0.0.1:8090/", true, 200, told},
		{"bare", plain, "GET", "http://localhost:8090/worker", true, 200, "17"},
		{"a preset", zitadel, "GET", "http://[::1]:8090/", true, 200, zitadelText(17)},
		{"over", plain, "GET", "http://127.0.0.1:8090/worker", false, 503, "hapax: the worker ID must not be used any more\n"},
		{"over, by a preset", zitadel, "GET", "http://127.0.0.1:8090/", false, 503, "hapax: the worker ID must not be used any more\n"},
		{"a web page", plain, "GET", "http://evil.example:8090/worker", true, 403, "hapax: this is for programs of this host\n"},
		{"no such path", plain, "GET", "http://127.0.0.1:8090/x", true, 404, "404 page not found\n"},
		{"without a name", cosid, "GET", "http://127.0.0.1:8090/", true, 400, nobody},
		{"the bare number without a name", cosid, "GET", "http://127.0.0.1:8090/worker", true, 400, nobody},
		{"a name too long", plain, "GET", "http://127.0.0.1:8090/?holder=" + strings.Repeat("x", 129), true, 400, strings.Replace(nobody, "0 bytes", "129 bytes", 1)},
		{"a name", cosid, "GET", "http://127.0.0.1:8090/?holder=a", true, 200, told},
		{"a name, over", cosid, "GET", "http://127.0.0.1:8090/?holder=a", false, 503, "hapax: the worker ID must not be used any more\n"},
		{"nobody gives it up", plain, "DELETE", "http://127.0.0.1:8090/", true, 400, nobody},
		{"another method", plain, "POST", "http://127.0.0.1:8090/", true, 405, "Method Not Allowed\n"},
	} {
		ok = c.held
		w := httptest.NewRecorder()
		c.handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), c.method, c.url, nil))
		if w.Code != c.status || w.Body.String() != c.body {
			t.Errorf("%s: %d %q, want %d %q", c.name, w.Code, w.Body, c.status, c.body)
		}
	}
	ok = true
	for header, values := range map[string]map[string]int{"Origin": {"http://127.0.0.1:8090": 403}, "Sec-Fetch-Site": {"cross-site": 403, "same-site": 403, "none": 200}} {
		for value, want := range values {
			r := httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1:8090/?holder=a", nil)
			r.Header.Set(header, value)
			w := httptest.NewRecorder()
			if cosid.ServeHTTP(w, r); w.Code != want {
				t.Errorf("%s: %s: %d, want %d", header, value, w.Code, want)
			}
		}
	}
	nameless := workerHandler(func() (answeredWorker, bool) {
		return answeredWorker{17, "", time.Now().Add(time.Hour).UnixMilli()}, true
	}, generator{})
	for _, c := range []struct {
		path string
		want int
	}{{"/worker", 200}, {"/?holder=b", 409}, {"/", 200}} { // one worker ID is told to one program
		w := httptest.NewRecorder()
		if nameless.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1:8090"+c.path, nil)); w.Code != c.want {
			t.Errorf("%s: %d %q, want %d", c.path, w.Code, w.Body, c.want)
		}
	}
	for _, address := range []string{"0.0.0.0:80", ":80", "10.0.0.1:80", "example.com:80", "127.0.0.1"} {
		if stop, err := answerWorker(t.Context(), nil, address, generator{}); err == nil {
			stop()
			t.Errorf("it listens at %q", address)
		}
	}
}

// No two worker IDs become one machine ID, however few there are.
func TestZitadelMachineIDs(t *testing.T) {
	for _, id := range []int64{0, 1, 2, 3, 255, 256, 40_000, 65_534, 65_535} {
		h := fnv.New32()
		_, _ = h.Write([]byte(zitadelText(id)))
		if got := int64(uint16(h.Sum32())); got != id {
			t.Errorf("of %d ZITADEL makes %d", id, got)
		}
	}
}

// A claims is what keeps a worker ID for one program.
type claims interface {
	take(holder string, left time.Duration) bool
	giveUp(holder string)
}

// A program that asks by a name has the worker ID for itself, until its time is over or it gave it up.
func oneHolder(c claims) error {
	for _, step := range []struct {
		holder string
		pass   time.Duration // before
		left   time.Duration // negative: it gives up
		want   bool
	}{
		{"a", 0, 10 * time.Second, true},
		{"b", 9 * time.Second, 10 * time.Second, false},
		{"", 0, 10 * time.Second, false},
		{"a", 0, 10 * time.Second, true}, // extended
		{"b", 9 * time.Second, 10 * time.Second, false},
		{"b", 0, -1, true}, // what it does not have
		{"b", 0, 10 * time.Second, false},
		{"b", time.Second, 10 * time.Second, true},
		{"a", 0, 10 * time.Second, false},
		{"b", 0, -1, true},
		{"", 0, 10 * time.Second, true},
		{"", time.Second, 10 * time.Second, true}, // extended, for all that is known
		{"a", 9 * time.Second, 10 * time.Second, false},
		{"a", time.Second, 10 * time.Second, true},
		{"a", 0, -1, true},
		{"b", 0, 10 * time.Second, true},
	} {
		time.Sleep(step.pass)
		if step.left < 0 {
			c.giveUp(step.holder)
		} else if got := c.take(step.holder, step.left); got != step.want {
			return fmt.Errorf("%q gets it: %v, want %v", step.holder, got, step.want)
		}
	}
	return nil
}

// A forgetfulClaim lets each program have it.
type forgetfulClaim struct{ claim }

func (c *forgetfulClaim) take(holder string, left time.Duration) bool {
	c.giveUp(c.holder)
	return c.claim.take(holder, left)
}

// A namingClaim remembers none but those with a name.
type namingClaim struct{ claim }

func (c *namingClaim) take(holder string, left time.Duration) bool {
	got := c.claim.take(holder, left)
	if c.holder == "" {
		c.giveUp("")
	}
	return got
}

// A generousClaim lets a program give up what is another's.
type generousClaim struct{ claim }

func (c *generousClaim) giveUp(string) { c.claim.giveUp(c.holder) }

func TestClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if err := oneHolder(&claim{}); err != nil {
			t.Error(err)
		}
		for _, broken := range []claims{&forgetfulClaim{}, &namingClaim{}, &generousClaim{}} {
			if oneHolder(broken) == nil {
				t.Errorf("%T passes", broken)
			}
		}
	})
}
