package console

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/fleet"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// sharedStore is a store in memory that others are said to use, too.
type sharedStore struct{ *memstore.Store }

func (sharedStore) Shared() bool { return true }

func (sharedStore) Close() error { return nil }

// newFleetStand is a stand whose node is one of a fleet.
func newFleetStand(t *testing.T, store *memstore.Store, tokens map[string]auth.TokenConfig, change func(*Options)) *stand {
	t.Helper()
	path := filepath.Join(t.TempDir(), "witness")
	w, err := witness.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	g, err := witness.Guard(sharedStore{store}, w, witness.Options{Heartbeat: 500 * time.Millisecond, Name: "alpha", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = g.Close(), w.Close() }) // the store ends with the test
	patience.Until(t, "the node has joined", func() bool { return g.Status().Ready() })
	s := newStandOn(t, g, tokens, change)
	s.witness = path
	return s
}

// enter writes the row of a process into a store, as everybody with the right to write there can.
func enter(t *testing.T, store *memstore.Store, join int, name, address string) {
	t.Helper()
	row := fmt.Sprintf("%019d-HOSTILE", join)
	about, err := json.Marshal(map[string]any{"name": name, "address": address, "every_ms": 1000, "serves": true})
	if err != nil {
		t.Fatal(err)
	}
	for table, value := range map[string][]byte{driver.TableNodes: about, driver.TableBeats: driver.Beat{Count: 1}.Encode()} {
		if ok, err := store.SwapRow(t.Context(), table, row, nil, value); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
}

// A stranger is a server that somebody's row points at, and what it was told.
type stranger struct {
	*httptest.Server
	mu   sync.Mutex // guards seen
	seen []string
}

func newStranger(t *testing.T, answer http.HandlerFunc) *stranger {
	t.Helper()
	s := &stranger{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.seen = append(s.seen, fmt.Sprint(r.Method, r.URL, r.Header))
		s.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

func (s *stranger) address() string { return s.Listener.Addr().String() }

func (s *stranger) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

const markup = `<script>alert(1)</script><a href="javascript:alert(1)">x</a>` + "\x1b[31m"

// hostileFacts are what a node may say that means harm.
func hostileFacts() facts {
	f := facts{
		Name: markup, Address: markup, Version: markup, Now: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), Code: markup, Why: markup, Command: markup, Rate: 1e308,
		Readiness: health.Readiness{
			State: markup, Store: markup, See: "javascript:alert(1)#" + markup, Budget: &api.Budget{Kind: markup, Name: markup, Seconds: -1e300},
			Alarms:    []api.Alarm{{Name: markup, About: markup, Detail: markup, See: "javascript:alert(1)"}},
			Forecasts: []api.Forecast{{What: markup, Kind: markup, Name: markup}},
			Cannot:    make([]api.Lack, 1000), Beside: map[string]health.Readiness{markup: {State: markup}},
		},
		Tags: []tagFacts{{Name: markup, Rate: 1e-300, Remaining: 1 << 62}, {Name: "orders", Rate: -1, Issued: -1 << 63}},
		Pools: []poolFacts{
			{Name: markup, Rollback: 1 << 62, Ends: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)},
			{Name: markup, Remaining: -1 << 63, Skew: -1 << 63, Worker: -1 << 63, Ends: time.Date(-9999, 1, 1, 0, 0, 0, 0, time.UTC)},
		},
		Log: []Entry{
			{Text: markup, About: markup, Alarm: markup, See: "//evil.example/#store-lost"},
			{Text: markup, Subject: "javascript:alert(1)"},
			{Text: markup, Subject: markup, Alarm: health.AlarmFloor},
			{Subject: markup, Pool: true},
		},
		Longer: [][]sample{{{At: -1 << 63, Rate: -1}}, {{At: 1<<63 - 1}}, {}, {}},
	}
	for i := range 10_000 {
		f.Samples = append(f.Samples, sample{At: int64(i) << 40, Rate: 1e308}, sample{At: f.Now.Unix() - 4*int64(i), Rate: 1e308, Took: -1e308})
		f.Tags[1].Past = append(f.Tags[1].Past, 3e38, -3e38)
	}
	return f
}

// Whoever can write to the store can have rows there that mean harm. They get nothing that
// is worth anything, keep no page from anybody, and put nothing on one but text.
func TestHostileRows(t *testing.T) {
	admin, config := token("admin")
	key := []byte("a key of the whole fleet")
	for name, keyed := range map[string]bool{"without a key": false, "with a key": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := memstore.New()
			s := newFleetStand(t, store, map[string]auth.TokenConfig{"ann": config}, func(o *Options) {
				if keyed {
					o.Fleet = fleet.New(fleet.Options{Service: o.Service, Policy: o.Policy, Key: key})
				}
			})
			beyond := newStranger(t, func(http.ResponseWriter, *http.Request) {})
			strangers := map[string]*stranger{
				"says what it likes": newStranger(t, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(hostileFacts()) }),
				"is no node":         newStranger(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, markup) }),
				"redirects": newStranger(t, func(w http.ResponseWriter, r *http.Request) {
					http.Redirect(w, r, beyond.URL, http.StatusTemporaryRedirect)
				}),
				"answers for ever": newStranger(t, func(w http.ResponseWriter, r *http.Request) {
					for r.Context().Err() == nil {
						_, _ = io.WriteString(w, " ")
						_ = http.NewResponseController(w).Flush()
						patience.Slow(time.Millisecond)
					}
				}),
				"answers gigabytes": newStranger(t, func(w http.ResponseWriter, r *http.Request) {
					sent := 0
					for piece := bytes.Repeat([]byte("[1,"), 100_000); r.Context().Err() == nil; sent += len(piece) {
						if _, err := w.Write(piece); err != nil {
							break
						}
					}
					if sent > 10*fleet.MaxAnswer { // what the network holds is beyond that what is read
						t.Errorf("it was read for %d bytes", sent)
					}
				}),
				"never answers": newStranger(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }),
			}
			join := 1000
			for name, other := range strangers {
				join++
				enter(t, store, join, "!"+name+markup, other.address())
			}
			for _, address := range []string{
				"169.254.169.254:80", "[fd00:ec2::254]:80", "[::ffff:169.254.169.254]:80", "255.255.255.255:80", "0.0.0.0:80", "evil.example:80/x?", "user:pass@127.0.0.1:1",
				"http://evil.example", markup, strings.Repeat("x", 10_000) + ":80", "127.0.0.1:99999", "127.0.0.1:", ":80", "",
			} {
				join++
				enter(t, store, join, "!"+strings.Repeat("long ", 2000), address)
			}
			for range 1000 {
				join++
				enter(t, store, join, fmt.Sprint("of many ", join), "127.0.0.1:1")
			}
			if _, at, _ := s.post(t, Prefix+"login", url.Values{"token": {admin}}); at != Prefix {
				t.Fatalf("log in: at %s", at)
			}
			for _, path := range []string{"", "tags", "tags?sort=rate", "tag?name=snowflake", "workers", "fence", "clocks", "decoder?ids=1", "log", "log?node=x&level=error", "series.json", "series.json?range=24h", "?range=1h"} {
				status, _, text := s.do(t, http.MethodGet, Prefix+path, nil, map[string]string{"Authorization": "Bearer " + admin})
				if status != http.StatusOK || len(text) > 1<<20 {
					t.Errorf("%q: %d, %d bytes", path, status, len(text))
				}
				if strings.Contains(text, "<script>alert") || strings.Contains(text, `href="javascript`) || strings.Contains(text, "evil.example/#") {
					t.Errorf("%q has what a stranger says as markup", path)
				}
				if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
					t.Errorf("%q draws what is no number", path)
				}
				if path == "" {
					wants(t, "the overview", text, "alpha", "more rows that do not live", "answers for ever")
				}
			}
			for name, other := range strangers {
				if len(other.told()) == 0 {
					t.Errorf("who %s was not asked, so that nothing is shown", name)
				}
				for _, told := range other.told() {
					if strings.Contains(told, admin) || strings.Contains(told, string(key)) || strings.Contains(told, "Authorization") || strings.Contains(told, "Cookie") {
						t.Errorf("who %s was told %s", name, told)
					}
				}
			}
			if told := beyond.told(); len(told) > 0 {
				t.Errorf("a redirection was followed: %s", told)
			}
		})
	}
}

// A cookie that somebody has planted becomes nobody's session by logging in.
func TestSessionFixation(t *testing.T) {
	admin, adminConfig := token("admin")
	reader, readerConfig := token("read")
	s := newStand(t, map[string]auth.TokenConfig{"ann": adminConfig, "eve": readerConfig}, nil)
	s.post(t, Prefix+"login", url.Values{"token": {reader}})
	planted := s.cookieOf()
	r := httptest.NewRequest(http.MethodPost, Prefix+"login", strings.NewReader(url.Values{"token": {admin}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.AddCookie(planted)
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if set := w.Result().Cookies(); len(set) != 1 || set[0].Value == planted.Value {
		t.Fatalf("log in with a planted cookie sets %v", set)
	}
	r = httptest.NewRequest(http.MethodPost, Prefix+"tags", strings.NewReader("name=x&kind=segment&do=1"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.AddCookie(planted)
	w = httptest.NewRecorder()
	if s.ServeHTTP(w, r); w.Code != http.StatusForbidden {
		t.Errorf("with the planted cookie a tag is created: %d", w.Code)
	}
	other := newStand(t, map[string]auth.TokenConfig{"eve": readerConfig}, nil)
	if other.inside(t, &http.Cookie{Name: other.sessions.name, Value: planted.Value}) {
		t.Error("a session of another server is good")
	}
}

// Ten thousand tags are shown in pages, and those that burn most are found among them.
func TestManyTags(t *testing.T) {
	store := memstore.New()
	for i := range 10_000 {
		step := int64(10)
		if i == 777 {
			step = 500
		}
		if _, err := store.CreateTag(t.Context(), hapax.Tag{Name: fmt.Sprintf("tag-%05d", i), Step: step}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
	}
	s := newStandOn(t, store, nil, nil)
	for i := range 2500 {
		n := 1
		if i == 1234 {
			n = 50
		}
		for range n {
			if _, err := s.svc.Next(t.Context(), fmt.Sprintf("tag-%05d", i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for path, wants := range map[string][2]string{
		"tags":                    {"tag-00000", "after=tag-0009"},
		"tags?after=tag-09000":    {"tag-09001", "To the first tags"},
		"tags?sort=issued":        {"tag-01234", "from=100"},
		"tags?sort=issued&from=x": {"tag-01234", "from=100"},
		"tags?has=g-0777":         {"tag-07779", "has=g-0777"},
		"tags?has=7":              {"tag-00547", "after=tag-00547&amp;has=7"},
		"tags?has=7&sort=issued":  {"from=100&amp;has=7", "sort=issued"},
		"":                        {"tag-01234", "All that are in use"},
	} {
		status, _, text := s.get(t, Prefix+path)
		if status != http.StatusOK || !strings.Contains(text, wants[0]) || !strings.Contains(text, wants[1]) || strings.Count(text, "<tr>") > 2*tagsPage {
			t.Errorf("%q: %d, %d rows", path, status, strings.Count(text, "<tr>"))
		}
	}
	for column, want := range map[string]string{"issued": "tag-01234", "step": "tag-00777"} {
		_, _, text := s.get(t, Prefix+"tags?sort="+column)
		if _, first, _ := strings.Cut(text, `href="tag?name=`); !strings.HasPrefix(first, want) {
			t.Errorf("sorted by %s, %.9s is the first", column, first)
		}
	}
	own := s.own(context.Background())
	if len(own.Tags) != maxTagFacts {
		t.Errorf("facts have %d tags", len(own.Tags))
	}
	if text, err := json.Marshal(own); err != nil || len(text) > fleet.MaxAnswer {
		t.Errorf("facts have %d bytes, %v", len(text), err)
	}
}

// The page of the fence takes a witness file, of a bounded size, from who may act.
func TestWitnessFiles(t *testing.T) {
	admin, config := token("admin")
	s := newFleetStand(t, memstore.New(), map[string]auth.TokenConfig{"ann": config}, nil)
	if _, err := s.svc.Next(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	send := func(file []byte, token string, fields ...string) (int, string) {
		t.Helper()
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		for i := 0; i < len(fields); i += 2 {
			_ = form.WriteField(fields[i], fields[i+1])
		}
		part, err := form.CreateFormFile("witness", "it's a file")
		if err == nil {
			_, err = part.Write(file)
		}
		if err != nil || form.Close() != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, Prefix+"fence", &body)
		r.Header.Set("Content-Type", form.FormDataContentType())
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	good, err := os.ReadFile(s.witness)
	if err != nil {
		t.Fatal(err)
	}
	status, text := send(good, admin)
	if status != http.StatusOK {
		t.Errorf("a witness file: %d", status)
	}
	wants(t, "a witness file", text, "nothing is wrong with the store", `hapax adopt --witness-file &#39;it&#39;\&#39;&#39;s a file&#39;`)
	status, text = send([]byte(markup), admin)
	if status != http.StatusBadRequest || strings.Contains(text, markup) {
		t.Errorf("what is no witness file: %d", status)
	}
	wants(t, "what is no witness file", text, "want a witness file")
	status, text = send(make([]byte, maxWitness+1), admin)
	if status != http.StatusBadRequest {
		t.Errorf("a file that is too long: %d", status)
	}
	wants(t, "a file that is too long", text, "up to 16 MiB")
	if status, _ = send(good, auth.NewToken(), "do", "1"); status != http.StatusUnauthorized {
		t.Errorf("somebody with a token that is not known: %d", status)
	}
	if status, text = send(good, admin, "node", "nobody"); status != http.StatusBadRequest {
		t.Errorf("a node that there is not: %d %s", status, text)
	}
}
