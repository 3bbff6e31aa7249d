package cli

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/store/memstore"
)

func TestWorkerAnswers(t *testing.T) {
	held, ok := answeredWorker{17, "2026-11-22T11:22:33.444Z", 1795346553444, time.Hour}, true
	now := func() (answeredWorker, bool) { return held, ok }
	handler := func(g generator) http.Handler { return workerHandler(now, g, &claim{}) }
	plain, zitadel, cosid := handler(generator{}), handler(generator{text: zitadelText}), handler(generator{isClaimed: true})
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
		return answeredWorker{17, "", time.Now().Add(time.Hour).UnixMilli(), time.Hour}, true
	}, generator{}, &claim{})
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
		if stop, err := answerWorker(t.Context(), nil, address, generator{}, &claim{}); err == nil {
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
	take(holder string, left time.Duration) (wait time.Duration, ok bool)
	giveUp(holder string)
}

// A program that asks by a name has the worker ID for itself, until its time is over or it gave it up; the
// next one has it when no number of the one before can lie ahead of the clock any more.
func oneHolder(c claims) error {
	for _, step := range []struct {
		holder string
		pass   time.Duration // before
		left   time.Duration // negative: it gives up
		want   bool
		wait   time.Duration
	}{
		{"a", 0, 10 * time.Second, true, 0},
		{"b", 9 * time.Second, 10 * time.Second, false, 0},
		{"", 0, 10 * time.Second, false, 0},
		{"a", 0, 10 * time.Second, true, 0}, // extended
		{"b", 9 * time.Second, 10 * time.Second, false, 0},
		{"b", 0, -1, true, 0}, // what it does not have
		{"b", 0, 10 * time.Second, false, 0},
		{"b", time.Second, 10 * time.Second, false, 3 * time.Second},
		{"b", time.Second, -1, true, 0}, // what nobody has: it waits no longer
		{"b", 0, 10 * time.Second, false, 2 * time.Second},
		{"b", 2 * time.Second, 10 * time.Second, true, 0},
		{"a", 0, 10 * time.Second, false, 0},
		{"b", 0, -1, true, 0},
		{"b", 0, 10 * time.Second, false, 3 * time.Second}, // with a generator that knows nothing of the first one's numbers
		{"", 2 * time.Second, 10 * time.Second, false, time.Second},
		{"", time.Second, 10 * time.Second, true, 0},
		{"", time.Second, 10 * time.Second, true, 0}, // extended, for all that is known
		{"a", 9 * time.Second, 10 * time.Second, false, 0},
		{"a", time.Second, 10 * time.Second, false, 3 * time.Second},
		{"a", 3 * time.Second, 10 * time.Second, true, 0},
		{"a", 0, -1, true, 0},
		{"b", 3 * time.Second, 10 * time.Second, true, 0},
	} {
		time.Sleep(step.pass)
		if step.left < 0 {
			c.giveUp(step.holder)
		} else if wait, got := c.take(step.holder, step.left); got != step.want || wait != step.wait {
			return fmt.Errorf("%q gets it: %v, after %v; want %v, after %v", step.holder, got, wait, step.want, step.wait)
		}
	}
	return nil
}

// A forgetfulClaim lets each program have it.
type forgetfulClaim struct{ claim }

func (c *forgetfulClaim) take(holder string, left time.Duration) (time.Duration, bool) {
	c.until = time.Time{}
	return c.claim.take(holder, left)
}

// A namingClaim remembers none but those with a name.
type namingClaim struct{ claim }

func (c *namingClaim) take(holder string, left time.Duration) (time.Duration, bool) {
	wait, ok := c.claim.take(holder, left)
	if c.holder == "" {
		c.until = time.Time{}
	}
	return wait, ok
}

// A generousClaim lets a program give up what is another's.
type generousClaim struct{ claim }

func (c *generousClaim) giveUp(string) { c.claim.giveUp(c.holder) }

// A hastyClaim forgets that numbers can lie ahead of the clock.
type hastyClaim struct{ claim }

func (c *hastyClaim) take(holder string, left time.Duration) (time.Duration, bool) {
	c.ahead = 0
	return c.claim.take(holder, left)
}

func TestClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := func() claim { return claim{ahead: 3 * time.Second} }
		good := one()
		if err := oneHolder(&good); err != nil {
			t.Error(err)
		}
		for _, broken := range []claims{&forgetfulClaim{one()}, &namingClaim{one()}, &generousClaim{one()}, &hastyClaim{one()}} {
			if oneHolder(broken) == nil {
				t.Errorf("%T passes", broken)
			}
		}
	})
}

// The next program waits for its answer until no number of the one before can lie ahead of the clock, and one
// that has gone meanwhile does not have the worker ID.
func TestClaimHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		until := time.Now().Add(time.Minute)
		handler := workerHandler(func() (answeredWorker, bool) {
			left := time.Until(until)
			return answeredWorker{17, "", until.UnixMilli(), left}, left > 0
		}, generator{isClaimed: true}, &claim{ahead: 3 * time.Second})
		ask := func(ctx context.Context, method, holder string, want int) {
			t.Helper()
			w := httptest.NewRecorder()
			if handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, "http://127.0.0.1:8090/?holder="+holder, nil)); w.Code != want {
				t.Errorf("%s of %s: %d %q, want %d", method, holder, w.Code, w.Body, want)
			}
		}
		ask(t.Context(), "GET", "a", 200)
		ask(t.Context(), "DELETE", "a", 204)
		given := time.Now()
		gone, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ask(gone, "GET", "b", 409)
		ask(t.Context(), "GET", "c", 200)
		if waited := time.Since(given); waited != 3*time.Second {
			t.Errorf("it waited for %v", waited)
		}
		ask(t.Context(), "DELETE", "c", 204)
		time.Sleep(55 * time.Second)
		ask(t.Context(), "GET", "d", 200)
		ask(t.Context(), "DELETE", "d", 204)
		ask(t.Context(), "GET", "e", 503) // its time was over before
	})
}

// A settableClock is one of a machine whose wall clock is set.
type settableClock struct{ offset *time.Duration }

func (c settableClock) Now() (time.Time, time.Duration) {
	wall, mono := hapax.SystemClock{}.Now()
	return wall.Add(*c.offset), mono
}

// After a step back of the wall clock, a time is told that it reaches when the time granted is over.
func TestToldTimeAfterClockStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var offset time.Duration
		time.Sleep(30 * 365 * 24 * time.Hour) // from the year 2000, which is before every epoch
		clock := settableClock{&offset}
		worker, err := hapax.HoldWorker(t.Context(), memstore.New(), hapax.HoldOptions{Pool: "p", Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		held := &holding{HeldWorker: worker, clock: clock}
		for _, offset = range []time.Duration{0, -time.Hour} {
			wall, _ := clock.Now()
			until, left := held.lasts()
			if most := wall.Add(worker.Remaining()); left <= 0 || until.After(most) {
				t.Errorf("clock set by %v: it tells %v, want %v", offset, until, most)
			}
		}
		if err := worker.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A slowStore is one whose worker leases are extended when the channel is closed.
type slowStore struct {
	hapax.WorkerStore
	answer chan struct{}
	sealed *int64
}

func (s slowStore) ExtendWorker(ctx context.Context, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	<-s.answer
	return s.WorkerStore.ExtendWorker(ctx, l, layout, term)
}

func (s slowStore) SealWorker(ctx context.Context, l hapax.Lease, last int64) error {
	*s.sealed = last
	return s.WorkerStore.SealWorker(ctx, l, last)
}

// While a worker ID is given back, which waits for an extension that is under way, no program is told it; one
// that has it by its name keeps it from being given back.
func TestWorkerGivenBack(t *testing.T) {
	for _, holder := range []string{"", "a"} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(30 * 365 * 24 * time.Hour) // from the year 2000, which is before every epoch
			store := slowStore{memstore.New(), make(chan struct{}), new(int64)}
			worker, err := hapax.HoldWorker(t.Context(), store, hapax.HoldOptions{Pool: "p"})
			if err != nil {
				t.Fatal(err)
			}
			c, err := client.Dial(t.Context(), client.Options{Once: true}, "http://127.0.0.1:1")
			if err != nil {
				t.Fatal(err)
			}
			held, one := &holding{HeldWorker: worker, client: c}, &claim{}
			handler := workerHandler(func() (answeredWorker, bool) {
				until, left := held.lasts()
				return answeredWorker{held.ID(), "", until.UnixMilli(), left}, left > 0 && held.Err() == nil
			}, generator{}, one)
			ask := func(holder string, want int) {
				t.Helper()
				w := httptest.NewRecorder()
				if handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1:8090/?holder="+holder, nil)); w.Code != want {
					t.Errorf("%q is told %d %q, want %d", holder, w.Code, w.Body, want)
				}
			}
			if holder != "" {
				ask(holder, 200)
			}
			time.Sleep(31 * time.Second) // half of the time granted is over, and more is asked for
			ended := make(chan struct{})
			go func() {
				held.giveBack(one)
				close(ended)
			}()
			synctest.Wait()
			for _, other := range []string{"b", "", holder} {
				ask(other, 503)
			}
			close(store.answer)
			<-ended
			if isSealed := *store.sealed != 0; isSealed != (holder == "") {
				t.Errorf("the worker ID of %q is given back: %v", holder, isSealed)
			}
		})
	}
}
