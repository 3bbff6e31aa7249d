// Command site makes a static site of the documents: one HTML file for each page,
// which needs no server, with a search that runs in the browser. A link to what there
// is not is an error.
package main

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html/template"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"

	"github.com/hapax-id/hapax"
)

//go:embed page.html
var layout string

//go:embed site.css
var styles []byte

//go:embed search.js
var search []byte

// source is where files are seen that are no pages.
const source = "https://github.com/hapax-id/hapax/blob/main/"

func main() {
	top := flag.String("top", "..", "directory of the repository")
	out := flag.String("o", "../dist/site", "directory to write to; made when missing")
	flag.Parse()
	if err := build(*top, *out); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

var markdown = goldmark.New(
	goldmark.WithExtensions(extension.GFM),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
	goldmark.WithRendererOptions(html.WithUnsafe()), // the pages are ours
)

// A page is one document.
type page struct {
	file    string // below the top of the tree, with slashes
	title   string
	text    []byte
	doc     ast.Node
	anchors map[string]bool
	found   []section
}

// A section is what a search finds.
type section struct {
	Page  string `json:"page"`
	Title string `json:"title"`
	Text  string `json:"text"`
	URL   string `json:"url"`
}

// address returns the page's file in the site.
func (p *page) address() string {
	if p.file == "README.md" {
		return "index.html"
	}
	return strings.TrimSuffix(p.file, ".md") + ".html"
}

// build writes the site; the error names every broken link.
func build(top, out string) error {
	pages, err := read(top)
	if err != nil {
		return err
	}
	s := &site{top: top, out: out, pages: pages, assets: map[string]bool{}}
	var broken []error
	for _, p := range s.pages {
		broken = append(broken, s.resolve(p)...)
	}
	if err := errors.Join(broken...); err != nil {
		return err
	}
	return s.write()
}

// read parses all pages.
func read(top string) (map[string]*page, error) {
	files := []string{"README.md", "CONTRIBUTING.md"}
	for _, pattern := range []string{"docs/*.md", "examples/*/README.md"} {
		found, err := fs.Glob(os.DirFS(top), pattern)
		if err != nil {
			return nil, err
		}
		files = append(files, found...)
	}
	pages := map[string]*page{}
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(top, filepath.FromSlash(file)))
		if err != nil {
			return nil, err
		}
		p := &page{file: file, text: data, doc: markdown.Parser().Parse(text.NewReader(data)), anchors: map[string]bool{}}
		p.index()
		pages[file] = p
	}
	return pages, nil
}

// namedAnchor is a place that a page names itself.
var namedAnchor = regexp.MustCompile(`<a id="([^"]+)">`)

// index collects the headings, and the text below each.
func (p *page) index() {
	for _, m := range namedAnchor.FindAllSubmatch(p.text, -1) {
		p.anchors[string(m[1])] = true
	}
	for n := p.doc.FirstChild(); n != nil; n = n.NextSibling() {
		heading, ok := n.(*ast.Heading)
		if !ok {
			if len(p.found) > 0 {
				p.found[len(p.found)-1].Text += plain(n, p.text) + " "
			}
			continue
		}
		id, _ := heading.AttributeString("id")
		anchor, _ := id.([]byte)
		p.anchors[string(anchor)] = true
		title := plain(heading, p.text)
		if p.title == "" {
			p.title = title
		}
		p.found = append(p.found, section{Page: p.title, Title: title, URL: p.address() + "#" + string(anchor)})
	}
}

// plain returns the words in a node.
func plain(n ast.Node, source []byte) string {
	var words strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		switch {
		case !entering:
		case n.Kind() == ast.KindText:
			t := n.(*ast.Text)
			words.Write(t.Segment.Value(source))
			if t.SoftLineBreak() {
				words.WriteByte(' ')
			}
		case n.Type() == ast.TypeBlock:
			words.WriteByte(' ')
			if lines := n.Lines(); n.Kind() == ast.KindFencedCodeBlock || n.Kind() == ast.KindCodeBlock {
				words.Write(lines.Value(source))
			}
		}
		return ast.WalkContinue, nil
	})
	return strings.TrimSpace(words.String())
}

// A site is what is written.
type site struct {
	top, out string
	pages    map[string]*page
	assets   map[string]bool // pictures that pages show
}

// resolve turns the links of a page into those of the site.
func (s *site) resolve(p *page) (broken []error) {
	_ = ast.Walk(p.doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // the function returns no error
		var destination *[]byte
		switch n := n.(type) {
		case *ast.Link:
			destination = &n.Destination
		case *ast.Image:
			destination = &n.Destination
		}
		if !entering || destination == nil {
			return ast.WalkContinue, nil
		}
		_, picture := n.(*ast.Image)
		to, err := s.target(p, string(*destination), picture)
		if err != nil {
			broken = append(broken, fmt.Errorf("%s: link to %s: %w", p.file, *destination, err))
		}
		*destination = []byte(to)
		return ast.WalkContinue, nil
	})
	return broken
}

var errNone = errors.New("there is no such file or heading")

// target returns where a link of a page leads in the site.
func (s *site) target(p *page, link string, picture bool) (string, error) {
	u, err := url.Parse(link)
	if err != nil || u.Scheme != "" || u.Host != "" {
		return link, err
	}
	file := p.file
	if u.Path != "" {
		file = path.Join(path.Dir(p.file), u.Path)
	}
	if to, ok := s.pages[file]; ok {
		if u.Fragment != "" && !to.anchors[u.Fragment] {
			return link, errNone
		}
		at := relative(p, to.address())
		if u.Fragment != "" {
			at += "#" + u.Fragment
		}
		return at, nil
	}
	if _, err := os.Stat(filepath.Join(s.top, filepath.FromSlash(file))); err != nil {
		return link, errNone
	}
	if picture {
		s.assets[file] = true
		return relative(p, file), nil
	}
	return source + file, nil
}

// relative returns the way from a page to a file of the site.
func relative(p *page, file string) string {
	return strings.Repeat("../", strings.Count(p.address(), "/")) + file
}

func (s *site) write() error {
	view, err := template.New("page").Parse(layout)
	if err != nil {
		return err
	}
	var found []section
	for _, file := range s.order() {
		p := s.pages[file]
		found = append(found, p.found...)
		var body, whole bytes.Buffer
		if err := markdown.Renderer().Render(&body, p.text, p.doc); err != nil {
			return err
		}
		err := view.Execute(&whole, map[string]any{
			"Title": p.title, "Body": template.HTML(body.String()), "Top": relative(p, ""), //nolint:gosec // the pages are ours
			"Menu": s.menu(p), "Version": hapax.Version(),
		})
		if err != nil {
			return err
		}
		if err := s.put(p.address(), whole.Bytes()); err != nil {
			return err
		}
	}
	index, err := json.Marshal(found)
	if err != nil {
		return err
	}
	for asset := range s.assets {
		data, err := os.ReadFile(filepath.Join(s.top, filepath.FromSlash(asset)))
		if err != nil {
			return err
		}
		if err := s.put(asset, data); err != nil {
			return err
		}
	}
	return errors.Join(
		s.put("site.css", styles),
		s.put("search.js", append([]byte("const sections = "+string(index)+";\n"), search...)),
	)
}

func (s *site) put(name string, data []byte) error {
	file := filepath.Join(s.out, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// order returns the pages: the first one, then by their titles.
func (s *site) order() []string {
	var files []string
	for file := range s.pages {
		files = append(files, file)
	}
	slices.SortFunc(files, func(a, b string) int {
		first := func(file string) int {
			if file == "README.md" {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(s.pages[a].title, s.pages[b].title))
	})
	return files
}

// A menuEntry is a page as all pages list it.
type menuEntry struct {
	Title, URL string
	Here       bool
}

func (s *site) menu(at *page) (entries []menuEntry) {
	for _, file := range s.order() {
		p := s.pages[file]
		entries = append(entries, menuEntry{p.title, relative(at, p.address()), p == at})
	}
	return entries
}
