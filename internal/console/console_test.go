package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/fleet"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// A stand is a console that listens, with a browser that keeps cookies.
type stand struct {
	*Console
	url     string
	browser *http.Client
	policy  *auth.Policy
	witness string // its file; empty: there is none
}

func newStand(t *testing.T, tokens map[string]auth.TokenConfig, change func(*Options)) *stand {
	t.Helper()
	return newStandOn(t, memstore.New(), tokens, change)
}

func newStandOn(t *testing.T, store driver.Store, tokens map[string]auth.TokenConfig, change func(*Options)) *stand {
	t.Helper()
	policy, err := auth.NewPolicy(tokens)
	if err != nil {
		t.Fatal(err)
	}
	log := NewLog(slog.DiscardHandler)
	svc, err := service.New(t.Context(), store, service.Options{Logger: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = svc.Close(context.Background()) })
	o := Options{Service: svc, Policy: policy, Logger: slog.New(slog.DiscardHandler), Log: log, Name: "alpha", URL: "http://alpha:8080", Secrets: filepath.Join(t.TempDir(), "console")}
	if change != nil {
		change(&o)
	}
	if o.Fleet == nil {
		o.Fleet = fleet.New(fleet.Options{Service: svc, Policy: policy, Name: o.Name})
	}
	s := &stand{Console: New(o), policy: policy}
	t.Cleanup(s.Close)
	web := httptest.NewServer(s.Console)
	t.Cleanup(web.Close)
	s.url = web.URL
	s.browser = s.newBrowser(t)
	return s
}

func (s *stand) newBrowser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar, Timeout: time.Minute}
}

// get follows redirects, as post does, and returns the page's status, path and text.
func (s *stand) get(t *testing.T, path string) (status int, at, text string) {
	t.Helper()
	return s.do(t, http.MethodGet, path, nil, nil)
}

func (s *stand) post(t *testing.T, path string, form url.Values) (status int, at, text string) {
	t.Helper()
	return s.do(t, http.MethodPost, path, form, nil)
}

func (s *stand) do(t *testing.T, method, path string, form url.Values, header map[string]string) (status int, at, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	res, err := s.browser.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Request.URL.RequestURI(), string(body)
}

func wants(t *testing.T, what, text string, all ...string) {
	t.Helper()
	for _, want := range all {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", what, want, text)
		}
	}
}

func token(scopes ...string) (string, auth.TokenConfig) {
	text := auth.NewToken()
	return text, auth.TokenConfig{Hash: auth.HashToken(text), Scopes: scopes}
}

// What is vendored is what npm has, with its licence.
func TestVendored(t *testing.T) {
	want := map[string]string{ // htmx.org 2.0.11
		"htmx.min.js":  "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
		"htmx.LICENSE": "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
	}
	entries, err := files.ReadDir("vendored")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := files.ReadFile("vendored/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != want[e.Name()] {
			t.Errorf("%s has the digest %x", e.Name(), sum)
		}
		delete(want, e.Name())
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		t.Errorf("%s is missing", name)
	}
}

var inline = regexp.MustCompile(`(?i)<script(?:[^>]*)>[^<]|<style|\sstyle=|\son[a-z]+=|="javascript:|(?:href|src|action)="(?:https?:)?/`)

// Every page is there, whole and without what its policy forbids; URLs are relative.
func TestPages(t *testing.T) {
	s := newStand(t, nil, nil)
	ctx := t.Context()
	for range 3 {
		if _, err := s.svc.Next(ctx, "orders"); err != nil {
			t.Fatal(err)
		}
	}
	id, err := s.svc.Next(ctx, "snowflake")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path  string
		wants []string
	}{
		{"", []string{"Numbers are issued: one node, and it can", "orders", "hapax status --server http://alpha:8080", "alpha", "First pool to end", "Who got number"}},
		{"", []string{"Busiest tags", `<a href="tag?name=snowflake">snowflake</a></th>`, "of pool"}},
		{"tags?sort=nodes", []string{`snowflake on <a href="workers?pool=default">default</a></td>`}},
		{"tag?name=snowflake", []string{"Numbers a second", "of the pool, on 1 nodes"}},
		{"tags", []string{`<details class="card" id="create"><summary>`, `href="tag?name=orders"`, "snowflake", "hapax tags list", `href="tags?sort=rate"`}},
		{"tags?sort=issued", []string{`href="tag?name=orders"`, `aria-sort="descending"`}},
		{"tag?name=orders", []string{"What each node has", "In hand", "What would happen"}},
		{"tag?name=orders&delete=1", []string{"Type the name again", "hapax tags delete orders"}},
		{"workers", []string{"leaf", `class="held"`, "In use"}},
		{"worker?pool=default&id=0", []string{"held", "Retire worker 0", "hapax workers retire default 0"}},
		{"fence", []string{"not guarded"}},
		{"clocks", []string{"Set back by", "default"}},
		{"decoder?ids=" + id.String(), []string{"guessed", "leaf", "sequence", "<rect"}},
		{"decoder?from=2026-01-01&until=2026-01-02&layout=leaf", []string{"WHERE id &gt;= ", "AND id &lt; "}},
		{"planner?rate=5000&nodes=20", []string{"Proposed", "its time ended on 2024-11-20", "hapax plan --rate 5000 --nodes 20", "leaf"}},
		{"log", []string{"only what somebody did", "only alarms", "warnings and errors", "<option>alpha</option>"}},
		{"log?only=alarms&level=error&node=alpha", []string{`value="alarms" selected`, `value="error" selected`, "<option selected>alpha</option>", "Nothing of that kind"}},
		{"?range=24h", []string{`<a href="./?range=24h" aria-current="true">`, `href="series.json?range=24h"`, "Store, ms a grant"}},
		{"?range=never", []string{`<a href="./?range=10m" aria-current="true">`}},
		{"tags?has=ORD", []string{`href="tag?name=orders"`, `value="ORD"`, `href="tags?has=ORD&amp;sort=rate"`}},
		{"tags?has=ord&sort=rate", []string{`href="tag?name=orders"`, `<option value="rate" selected>Numbers/s</option>`}},
		{"tags?has=none", []string{"There is no tag with none in its name"}},
	} {
		status, _, text := s.get(t, Prefix+tt.path)
		if status != http.StatusOK {
			t.Errorf("%q: %d", tt.path, status)
		}
		wants(t, tt.path, text, append(tt.wants, `<html lang="en">`, "</html>")...)
		if isLog := strings.HasPrefix(tt.path, "log"); strings.Contains(text, "As a command") == isLog {
			t.Errorf("%q: there is a command: %v", tt.path, !isLog)
		}
		if found := inline.FindString(text); found != "" {
			t.Errorf("%q has %q within the page", tt.path, found)
		}
		for _, link := range regexp.MustCompile(`(?:href|src)="(assets/[^"]+)"`).FindAllStringSubmatch(text, -1) {
			if status, _, _ := s.get(t, Prefix+link[1]); status != http.StatusOK {
				t.Errorf("%q: %s: %d", tt.path, link[1], status)
			}
		}
	}
	if _, at, _ := s.get(t, "/"); at != Prefix {
		t.Errorf("/ leads to %s", at)
	}
}

// A name that somebody chose to do harm stays text.
func TestHostileNames(t *testing.T) {
	s := newStand(t, nil, nil)
	name := `<script>alert(1)</script>'";$(reboot)`
	if _, err := s.svc.Next(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", "tags", "tag?name=" + url.QueryEscape(name), "decoder?ids=" + url.QueryEscape(name)} {
		if _, _, text := s.get(t, Prefix+path); strings.Contains(text, "<script>alert") {
			t.Errorf("%q has it as markup", path)
		}
	}
	if got := []rune(shown(strings.Repeat("é", 10_000))); len(got) > maxCalled+1 {
		t.Errorf("%d runes are shown", len(got))
	}
	if got := command("hapax", "it's", "plain"); got != `hapax 'it'\''s' plain` {
		t.Error(got)
	}
}

func TestActions(t *testing.T) {
	s := newStand(t, nil, nil)
	form := url.Values{"name": {"invoices"}, "kind": {"segment"}, "step": {"50"}, "start": {"100"}, "code": {"INV-{id:6}"}}
	status, _, text := s.post(t, Prefix+"tags", form)
	if _, err := s.svc.Tag(t.Context(), "invoices"); status != http.StatusOK || err == nil {
		t.Fatalf("asked what would happen: %d, and it is there", status)
	}
	wants(t, "what would happen", text, "The first number is 100", "INV-{id:6}", "frozen for good", "hapax tags create invoices --start 100 --step 50 --code &#39;INV-{id:6}&#39;")
	form.Set("do", "1")
	status, at, text := s.post(t, Prefix+"tags", form)
	if status != http.StatusOK || !strings.HasPrefix(at, Prefix+"tag?") {
		t.Fatalf("create: %d at %s", status, at)
	}
	wants(t, "create", text, "The tag was created.", "invoices")
	if id, err := s.svc.Next(t.Context(), "invoices"); err != nil || id != 100 {
		t.Fatalf("it begins with %v, %v", id, err)
	}
	if status, _, text = s.post(t, Prefix+"tags", url.Values{"name": {"x"}, "step": {"many"}}); status != http.StatusBadRequest {
		t.Errorf("a wrong step: %d", status)
	}
	wants(t, "a wrong step", text, "whole number", `value="many"`, `href="tags"`)
	if status, _, _ = s.post(t, Prefix+"tag", url.Values{"do": {"change"}, "name": {"invoices"}, "step": {"70"}, "min_step": {"60"}, "max_step": {"80"}}); status != http.StatusOK {
		t.Errorf("change: %d", status)
	}
	if tag, err := s.svc.Tag(t.Context(), "invoices"); err != nil || tag.Step != 70 || tag.MaxStep != 80 {
		t.Errorf("changed to %+v, %v", tag, err)
	}
	if status, _, _ = s.post(t, Prefix+"tag", url.Values{"do": {"delete"}, "name": {"invoices"}, "again": {"invoice"}}); status != http.StatusBadRequest {
		t.Errorf("delete with another name: %d", status)
	}
	if tag, _ := s.svc.Tag(t.Context(), "invoices"); tag.Deleted {
		t.Error("it was deleted")
	}
	if status, _, text = s.post(t, Prefix+"tag", url.Values{"do": {"delete"}, "name": {"invoices"}, "again": {"invoices"}}); status != http.StatusOK {
		t.Errorf("delete: %d", status)
	}
	wants(t, "delete", text, "The tag was deleted")
	form.Del("do")
	form.Del("start")
	_, _, text = s.post(t, Prefix+"tags", form)
	wants(t, "what would happen to a deleted tag", text, "The deleted tag of this name comes back", "150")
	if _, err := s.svc.Next(t.Context(), "snowflake"); err != nil {
		t.Fatal(err)
	}
	if status, _, text = s.post(t, Prefix+"worker", url.Values{"pool": {hapax.DefaultPool}, "id": {"0"}}); status != http.StatusOK {
		t.Errorf("retire: %d", status)
	}
	wants(t, "retire", text, "retired")
	_, _, text = s.get(t, Prefix+"log?only=actions")
	wants(t, "log", text, "create tag", "delete tag", "retire worker", "invoices")
}

// Nothing changes by a request that a page of another origin has a browser send, nor by a GET.
func TestForeignOrigins(t *testing.T) {
	s := newStand(t, nil, nil)
	form := url.Values{"name": {"x"}, "kind": {"segment"}, "do": {"1"}}
	for _, header := range []map[string]string{{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}} {
		if status, _, _ := s.do(t, http.MethodPost, Prefix+"tags", form, header); status != http.StatusForbidden {
			t.Errorf("%v: %d", header, status)
		}
	}
	for _, path := range []string{"tags?name=x&kind=segment", "tag?name=x&do=change", "logout", "fence?do=1&floor=9"} {
		s.get(t, Prefix+path)
	}
	if _, err := s.svc.Tag(t.Context(), "x"); err == nil {
		t.Error("it was created")
	}
	if status, _, _ := s.do(t, http.MethodPost, Prefix+"tags", form, map[string]string{"Origin": s.url, "Sec-Fetch-Site": "same-origin"}); status != http.StatusOK {
		t.Errorf("its own: %d", status)
	}
}

func TestReaders(t *testing.T) {
	reader, readerConfig := token("read")
	issuer, issuerConfig := token("issue")
	s := newStand(t, map[string]auth.TokenConfig{"eve": readerConfig, "app": issuerConfig}, nil)
	if _, at, _ := s.get(t, Prefix+"tags"); at != Prefix+"login" {
		t.Fatalf("without a session: %s", at)
	}
	if status, _, _ := s.get(t, Prefix+"series.json"); status != http.StatusUnauthorized {
		t.Errorf("a program without a token: %d", status)
	}
	if status, _, text := s.post(t, Prefix+"login", url.Values{"token": {auth.NewToken()}}); status != http.StatusUnauthorized || !strings.Contains(text, "not known") {
		t.Errorf("a wrong token: %d", status)
	}
	if status, _, _ := s.post(t, Prefix+"login", url.Values{"token": {issuer}}); status != http.StatusForbidden {
		t.Errorf("an issuer: %d", status)
	}
	if status, at, text := s.post(t, Prefix+"login", url.Values{"token": {" " + reader + "\n"}}); status != http.StatusOK || at != Prefix || !strings.Contains(text, "eve (reads only)") {
		t.Fatalf("log in: %d at %s", status, at)
	}
	forms := map[string]url.Values{
		"tags": {"name": {"x"}, "kind": {"segment"}, "do": {"1"}}, "tag": {"name": {"snowflake"}, "do": {"delete"}, "again": {"snowflake"}},
		"worker": {"pool": {"default"}, "id": {"0"}}, "fence": {"do": {"1"}},
	}
	for pattern := range s.pages() {
		path, isPost := strings.CutPrefix(pattern, "POST "+Prefix)
		if !isPost || path == "decoder" { // which changes nothing
			continue
		}
		if forms[path] == nil {
			t.Errorf("%s is not tried", path)
		}
		for _, header := range []map[string]string{nil, {"Authorization": "Bearer " + reader}} {
			status, _, text := s.do(t, http.MethodPost, Prefix+path, forms[path], header)
			if status != http.StatusForbidden || !strings.Contains(text, "may not") {
				t.Errorf("%s: %d", path, status)
			}
		}
	}
	for _, path := range []string{"", "tags", "workers", "fence", "clocks", "decoder", "planner", "log", "series.json"} {
		status, _, text := s.get(t, Prefix+path)
		if status != http.StatusOK || strings.Contains(text, `method="post" action="tags`) || strings.Contains(text, `class="danger"`) {
			t.Errorf("%s: %d, or it offers what eve may not do", path, status)
		}
	}
}

// cookieOf returns the session of the browser.
func (s *stand) cookieOf() *http.Cookie {
	at, _ := url.Parse(s.url + Prefix)
	for _, c := range s.browser.Jar.Cookies(at) {
		if c.Name == s.sessions.name {
			return c
		}
	}
	return &http.Cookie{Name: s.sessions.name, Value: "none"}
}

// inside reports whether a cookie lets somebody in.
func (s *stand) inside(t *testing.T, cookie *http.Cookie) bool {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, Prefix+"tags", nil)
	r.AddCookie(cookie)
	w := httptest.NewRecorder()
	s.Console.ServeHTTP(w, r)
	return w.Code == http.StatusOK
}

func TestSessionsEnd(t *testing.T) {
	admin, adminConfig := token("admin")
	other, otherConfig := token("admin")
	shape := map[string]auth.TokenConfig{"ann": adminConfig, "bob": otherConfig}
	path := filepath.Join(t.TempDir(), "console")
	s := newStand(t, shape, func(o *Options) { o.Secrets = path })
	login := func(token string) *http.Cookie {
		t.Helper()
		s.browser = s.newBrowser(t)
		if status, at, _ := s.post(t, Prefix+"login", url.Values{"token": {token}}); status != http.StatusOK || at != Prefix {
			t.Fatalf("log in: %d at %s", status, at)
		}
		return s.cookieOf()
	}
	first, second := login(admin), login(admin)
	if strings.Contains(second.Value, admin) || first.Value == second.Value {
		t.Error("the cookie shows the token, or two sessions are one")
	}
	s.post(t, Prefix+"logout", nil)
	if s.inside(t, second) || !s.inside(t, first) {
		t.Error("log out ends that session, and no other")
	}
	again := New(Options{Service: s.svc, Policy: s.policy, Logger: slog.New(slog.DiscardHandler), Secrets: path, Fleet: fleet.New(fleet.Options{Service: s.svc})})
	t.Cleanup(again.Close)
	restarted := &stand{Console: again}
	if restarted.inside(t, second) || !restarted.inside(t, first) {
		t.Error("a restart changes which sessions are good")
	}
	for _, forged := range []string{"", ".", first.Value + "x", strings.Replace(first.Value, ".", "..", 1), "a.b.9999999999.", first.Value[:len(first.Value)-2]} {
		if s.inside(t, &http.Cookie{Name: first.Name, Value: forged}) {
			t.Errorf("%q is good", forged)
		}
	}
	third := login(other)
	delete(shape, "ann")
	if err := s.policy.Replace(shape); err != nil {
		t.Fatal(err)
	}
	if s.inside(t, first) || !s.inside(t, third) {
		t.Error("revocation ends sessions of that token, and no others")
	}
	otherConfig.Expires = time.Now().Add(-time.Second).Format(time.RFC3339)
	if err := s.policy.Replace(map[string]auth.TokenConfig{"bob": otherConfig}); err != nil {
		t.Fatal(err)
	}
	if s.inside(t, third) {
		t.Error("a token that has expired is good for a session")
	}
}

func TestCookie(t *testing.T) {
	admin, config := token("admin")
	s := newStand(t, map[string]auth.TokenConfig{"ann": config}, nil)
	for _, at := range []struct {
		scheme, origin string
		secure         bool
	}{{"http", "", false}, {"http", "http://alpha", false}, {"https", "", true}, {"http", "https://alpha", true}} { // the last is behind a proxy with TLS
		secure := at.secure
		r := httptest.NewRequest(http.MethodPost, at.scheme+"://alpha"+Prefix+"login", strings.NewReader(url.Values{"token": {admin}}.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if at.origin != "" {
			r.Header.Set("Origin", at.origin)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		c := w.Result().Cookies()[0]
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure != secure || c.MaxAge != 12*3600 || c.Path != "" {
			t.Errorf("%+v", c)
		}
		if w.Header().Get("Location") != "./" || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%v", w.Header())
		}
	}
}

func TestGuess(t *testing.T) {
	now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	leaf, err := hapax.ParseLayout(hapax.LayoutLeaf)
	if err != nil {
		t.Fatal(err)
	}
	tick, err := leaf.TickOf(now.Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	id, err := leaf.Compose(hapax.Fields{{Name: hapax.FieldTime, Value: tick}, {Name: leaf.WorkerField(), Value: 3}, {Name: hapax.FieldSequence, Value: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if l := guess([]hapax.ID{id}, hapax.Layouts(), now); l != leaf {
		t.Errorf("%s", l)
	}
	if l := guess([]hapax.ID{1, 2, 3}, hapax.Layouts(), now); !l.IsZero() {
		t.Errorf("numbers that count: %s", l)
	}
}

// Every sign of trouble leads to the remedy, on this very server.
func TestSee(t *testing.T) {
	s := newStand(t, nil, nil)
	for see, want := range map[string]string{
		seeCode("store_unavailable"): "../docs/runbook.html#store-lost", "": "", "docs/runbook.md": "", "docs/runbook.md#none": "",
		"//evil.example/#store-lost": "../docs/runbook.html#store-lost",
	} {
		if got := seeLink(see); got != want {
			t.Errorf("%q leads to %q, want %q", see, got, want)
		}
	}
	page, id, _ := strings.Cut(strings.TrimPrefix(seeLink(seeCode("store_unavailable")), ".."), "#")
	if status, _, text := s.get(t, page); status != http.StatusOK || !strings.Contains(text, `id="`+id+`"`) {
		t.Errorf("%s: %d, or it has no %s", page, status, id)
	}
}

// The log has alarms and actions whatever the level of the whole log is, and nothing else
// below a warning.
func TestLogPage(t *testing.T) {
	kept := NewLog(slog.DiscardHandler)
	log := slog.New(kept)
	log.Info("alarm cleared", "alarm", "store_lost", "about", "", "see", signals.SeeAlarm("store_lost"))
	log.Warn("alarm raised", "alarm", "store_lost", "about", "", "see", signals.SeeAlarm("store_lost"))
	log.Warn("a warning", "key", "value")
	log.Info("not worth a look")
	log.WithGroup("audit").Info("an action")
	s := newStand(t, nil, func(o *Options) { o.Log = kept })
	for path, has := range map[string][]string{
		"log":              {"alarm cleared", "a warning", "key=value", "an action", `href="../docs/runbook.html#store-lost"`},
		"log?only=alarms":  {"alarm cleared", "<strong>store_lost</strong>"},
		"log?only=actions": {"an action"},
	} {
		_, _, text := s.get(t, Prefix+path)
		wants(t, path, text, has...)
		if n := strings.Count(text, "What the runbook says"); path == "log" && n != 1 {
			t.Errorf("%d lines lead to the runbook; want that of the alarm that was raised alone", n)
		}
		if strings.Contains(text, "not worth") || path != "log" && strings.Contains(text, "a warning") {
			t.Errorf("%s lists too much", path)
		}
	}
}

// The documents are for everybody who reaches the listener, the console is not.
func TestDocuments(t *testing.T) {
	_, config := token("read")
	s := newStand(t, map[string]auth.TokenConfig{"watcher": config}, nil)
	if status, at, text := s.get(t, "/docs/"); status != http.StatusOK || at != "/docs/" || !strings.Contains(text, `href="runbook.html"`) {
		t.Errorf("%d at %s: %s", status, at, text)
	}
	if _, at, _ := s.get(t, Prefix); at != Prefix+"login" {
		t.Errorf("the console is shown at %s", at)
	}
}
