// Package site renders the documents as HTML: one file for each page, which needs no
// server, with a search that runs in the browser. The command that makes the site and the
// server, which serves the pages of its own version, render them by it.
package site

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/url"
	"path"
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

// source is where links to files that are no pages lead.
const source = "https://github.com/hapax-id/hapax/blob/main/"

// Tables align by an attribute, because a Content-Security-Policy forbids styles within a
// page.
var markdown = goldmark.New(
	goldmark.WithExtensions(
		extension.Linkify, extension.Strikethrough, extension.TaskList,
		extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignAttribute)),
	),
	goldmark.WithParserOptions(parser.WithAutoHeadingID()),
	goldmark.WithRendererOptions(html.WithUnsafe()), // the pages are ours
)

// A page is one document.
type page struct {
	file    string // below the top, with slashes
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
	if p.file == index {
		return "index.html"
	}
	return strings.TrimSuffix(p.file, ".md") + ".html"
}

// index is the page that a reader sees first.
const index = "README.md"

// Render renders the pages of the whole tree below top. The error names every dead
// link.
func Render(top fs.FS) (map[string][]byte, error) {
	s := &site{top: top, pages: map[string]*page{}, files: map[string][]byte{}}
	return s.files, s.render(index, "CONTRIBUTING.md", "docs/*.md", "examples/*/README.md")
}

// renderDocuments renders the pages of the directory docs alone. What they link to in the
// rest of the tree is seen at its source.
func renderDocuments(docs fs.FS) (map[string][]byte, error) {
	s := &site{top: docs, below: "docs", pages: map[string]*page{}, files: map[string][]byte{}}
	return s.files, s.render("*.md")
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

// A site is what is rendered.
type site struct {
	top   fs.FS
	below string // where in the tree the top is; empty: it is the whole tree
	pages map[string]*page
	files map[string][]byte
}

func (s *site) render(patterns ...string) error {
	if err := s.read(patterns); err != nil {
		return err
	}
	var broken []error
	for _, p := range s.pages {
		broken = append(broken, s.resolve(p)...)
	}
	if err := errors.Join(broken...); err != nil {
		return err
	}
	return s.write()
}

// read parses all pages. Where none comes first, one that lists the others does.
func (s *site) read(patterns []string) error {
	for _, pattern := range patterns {
		files, err := fs.Glob(s.top, pattern)
		if err != nil {
			return err
		}
		for _, file := range files {
			data, err := fs.ReadFile(s.top, file)
			if err != nil {
				return err
			}
			s.add(file, data)
		}
	}
	if s.pages[index] == nil {
		list := []byte("# hapax\n\n")
		for _, file := range s.order() {
			list = fmt.Appendf(list, "- [%s](%s)\n", s.pages[file].title, file)
		}
		s.add(index, list)
	}
	return nil
}

func (s *site) add(file string, data []byte) {
	p := &page{file: file, text: data, doc: markdown.Parser().Parse(text.NewReader(data)), anchors: map[string]bool{}}
	p.index()
	s.pages[file] = p
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
	if picture {
		data, err := fs.ReadFile(s.top, file)
		if err != nil {
			return link, errNone
		}
		s.files[file] = data
		return relative(p, file), nil
	}
	// The rest of the tree is not at hand here; Render, over all of it, finds dead links.
	if s.below != "" {
		return source + path.Join(s.below, file), nil
	}
	if _, err := fs.Stat(s.top, file); err != nil {
		return link, errNone
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
		s.files[p.address()] = whole.Bytes()
	}
	sections, err := json.Marshal(found)
	if err != nil {
		return err
	}
	s.files["site.css"] = styles
	// Within the program: a page that is opened as a file may fetch nothing.
	s.files["search.js"] = append([]byte("const sections = "+string(sections)+";\n"), search...)
	return nil
}

// order returns the pages: the first one, then by their titles.
func (s *site) order() []string {
	var files []string
	for file := range s.pages {
		files = append(files, file)
	}
	slices.SortFunc(files, func(a, b string) int {
		first := func(file string) int {
			if file == index {
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
