package site

import (
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/hapax-id/hapax/docs"
)

// A link to a page, a heading or a file that does not exist is an error that names it.
func TestBrokenLinks(t *testing.T) {
	top := fstest.MapFS{
		"README.md":       {Data: []byte("# Top\n[good](docs/a.md#here) [other](https://example.com)\n")},
		"CONTRIBUTING.md": {Data: []byte("# C\n")},
		"docs/a.md":       {Data: []byte("# A\n## Here\n")},
	}
	if _, err := Render(top); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{"docs/b.md", "docs/a.md#there", "main.go", "#nowhere"} {
		top["README.md"] = &fstest.MapFile{Data: []byte("# Top\n[bad](" + link + ")\n")}
		if _, err := Render(top); err == nil || !strings.Contains(err.Error(), link) {
			t.Errorf("a link to %s: %v", link, err)
		}
	}
}

// The server has every document, and what each of them needs; nothing in a page is what a
// policy without exceptions forbids.
func TestServe(t *testing.T) {
	get := func(at string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		Serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, at, nil))
		return w
	}
	pages, err := docs.Pages.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, page := range pages {
		name, is := strings.CutSuffix(page.Name(), ".md")
		if !is {
			continue
		}
		at := Prefix + name + ".html"
		w := get(at)
		body := w.Body.String()
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(body, "<h1") {
			t.Errorf("%s: %d %s", at, w.Code, w.Header())
		}
		if regexp.MustCompile(`<[^>]+ style=|<style|<script>|<[^>]+ on[a-z]+=`).MatchString(body) {
			t.Errorf("%s has styles or programs of its own", at)
		}
		for _, m := range regexp.MustCompile(`(?:href|src)="([^"#?]*)[^"]*"`).FindAllStringSubmatch(body, -1) {
			if m[1] == "" || strings.Contains(m[1], ":") {
				continue
			}
			to := path.Join(Prefix, m[1])
			if w := get(to); w.Code != http.StatusOK || w.Header().Get("Content-Type") == "" {
				t.Errorf("%s links to %s: %d %s", at, to, w.Code, w.Header())
			}
		}
		checked++
	}
	if checked < 25 {
		t.Errorf("there are %d documents", checked)
	}
	if w := get(Prefix); !strings.Contains(w.Body.String(), `href="operating.html"`) {
		t.Errorf("the first page lists no others: %s", w.Body)
	}
	for _, at := range []string{Prefix + "none.html", Prefix + "docs.go", Prefix + "../go.mod"} {
		if w := get(at); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", at, w.Code)
		}
	}
}
