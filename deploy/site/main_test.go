package main

import (
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
)

// The site is made of the pages as they are: no link of theirs is broken, and every
// page can be found.
func TestSite(t *testing.T) {
	out := t.TempDir()
	if err := build("../..", out); err != nil {
		t.Fatal(err)
	}
	pages := 0
	err := filepath.WalkDir(out, func(file string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".html" {
			return err
		}
		pages++
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, m := range regexp.MustCompile(`(?:href|src)="([^"#?]*)[^"]*"`).FindAllStringSubmatch(string(text), -1) {
			if m[1] == "" || strings.Contains(m[1], ":") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), m[1])); err != nil {
				t.Errorf("%s links to %s", file, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages < 25 {
		t.Errorf("there are %d pages", pages)
	}
	t.Run("search", func(t *testing.T) { searches(t, out) })
	t.Run("links", func(t *testing.T) { follows(t, out, pages) })
}

// chromium returns the page at a URL as a browser has rendered it.
func chromium(t *testing.T, url string) string {
	t.Helper()
	browser := testservers.Require(t, []string{"chromium"})
	cmd := exec.CommandContext(t.Context(), browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
		"--user-data-dir="+t.TempDir(), "--virtual-time-budget=60000", "--dump-dom", url)
	dom, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(dom)
}

// checker is a page that opens every page of the site, and says which pictures are not
// shown, and which links lead to no page or to no place on it.
const checker = `<!DOCTYPE html><pre id="said"></pre><script>
const said = [], seen = new Map();
const open = async (path) => {
  if (!seen.has(path)) {
    const frame = document.createElement("iframe");
    const loaded = new Promise((done) => { frame.onload = done; });
    frame.src = path;
    document.body.append(frame);
    await loaded;
    seen.set(path, frame.contentDocument);
    const page = frame.contentDocument;
    if (!page.querySelector("h1")) said.push("no page: " + path);
    for (const i of page.images) if (!i.complete || i.naturalWidth === 0) said.push("no picture: " + path + " " + i.src);
    for (const a of page.links) {
      if (a.origin !== location.origin) continue;
      const to = await open(a.pathname);
      if (a.hash && !to.getElementById(decodeURIComponent(a.hash.slice(1)))) said.push("no place: " + path + " " + a.pathname + a.hash);
    }
  }
  return seen.get(path);
};
open("/index.html").then(() => { said.push("pages: " + seen.size); document.getElementById("said").textContent = said.join("\n"); });
</script>`

// follows has a browser follow every link of every page.
func follows(t *testing.T, out string, pages int) {
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/check" {
			_, _ = io.WriteString(w, checker) // the browser reads it
			return
		}
		data, err := os.ReadFile(filepath.Join(out, filepath.FromSlash(r.URL.Path))) // not by http.ServeFile, which redirects from index.html
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", mime.TypeByExtension(filepath.Ext(r.URL.Path)))
		_, _ = w.Write(data)
	}))
	defer site.Close()
	_, said, _ := strings.Cut(chromium(t, site.URL+"/check"), `<pre id="said">`)
	said, _, _ = strings.Cut(said, "</pre>")
	if said != fmt.Sprintf("pages: %d", pages) {
		t.Errorf("a browser that followed every link says, of %d pages:\n%s", pages, said)
	}
}

// searches has a browser search on a page.
func searches(t *testing.T, out string) {
	for query, want := range map[string]string{
		"fencing token":       `<a href="docs/concepts.html#`,
		"no such word as qqx": "Nothing found",
	} {
		at := "file://" + filepath.Join(out, "index.html") + "?q=" + strings.ReplaceAll(query, " ", "+")
		_, result, _ := strings.Cut(chromium(t, at), `<section id="found"`)
		result, _, _ = strings.Cut(result, "</section>")
		if !strings.Contains(result, want) {
			t.Errorf("searching for %q shows %s", query, result)
		}
	}
}
