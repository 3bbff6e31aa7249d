// Package accounting tests that importing a file loses nothing of it: whatever is changed in
// the file changes what the import prints, is named there, or is refused.
package accounting

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A Case is a set of files that belong together, by their names.
type Case map[string]string

// Read imports the files in a directory.
type Read func(dir string) (string, error)

// Write writes the files into a new directory.
func (c Case) Write(t testing.TB) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range c {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Check fails for each setting in the files of which the import neither says nor does
// anything, and returns what it prints. The keys of own are inserted into properties files,
// beside one of something else.
func (c Case) Check(t *testing.T, read Read, own string) string {
	t.Helper()
	dir := c.Write(t)
	text, err := read(dir)
	if err != nil {
		t.Fatalf("the files are not read: %v", err)
	}
	tried := 0
	for name, content := range c {
		all := xmlChanges
		if !strings.Contains(content, "<") {
			all = func(text string) []change { return propertyChanges(text, own) }
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		for _, ch := range all(content) {
			if err := os.WriteFile(path, []byte(ch.text), 0o600); err != nil {
				t.Fatal(err)
			}
			tried++
			switch got, err := read(dir); {
			case err != nil, got != text && !ch.inserted, strings.Contains(got, ch.name):
			default:
				t.Errorf("%s: %s is not accounted for: it is neither carried over, nor named, nor refused", name, ch.what)
			}
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if tried < 10 {
		t.Errorf("only %d changes were tried", tried)
	}
	return text
}

// A change is a file with one thing changed.
type change struct {
	what     string
	name     string // that the import may print instead of doing something
	text     string
	inserted bool // it must print the name, or refuse
}

func propertyChanges(text, own string) (all []change) {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		key, value, ok := strings.Cut(strings.TrimPrefix(line, "\ufeff"), "=")
		if !ok || strings.HasPrefix(key, "#") {
			continue
		}
		with := func(line string) string {
			changed := slices.Clone(lines)
			changed[i] = line
			return strings.Join(changed, "\n")
		}
		all = append(all,
			change{"the value of " + key, key, with(key + "=" + strings.TrimRight(value, "\r") + "9"), false},
			change{"the name of " + key, key + "x", with(key + "x=" + value), false})
	}
	for _, key := range []string{own + "unknown", "something.else"} {
		all = append(all, change{"a new " + key, key, text + "\n" + key + "=1\n", true})
	}
	return all
}

// xmlChanges changes each attribute's name and value and each text, and inserts into each
// element an attribute and an element.
func xmlChanges(text string) (all []change) {
	tokens, err := read(text)
	if err != nil {
		panic(err) // it was read by the import
	}
	var named []string // the name of each open element: its attribute name, or else its own
	for i, token := range tokens {
		with := func(token ...xml.Token) string {
			return render(slices.Concat(tokens[:i], token, tokens[i+1:]))
		}
		switch e := token.(type) {
		case xml.StartElement:
			name := e.Name.Local
			for _, a := range e.Attr {
				if a.Name.Local == "name" && name != "bean" {
					name = a.Value
				}
			}
			if slices.Contains([]string{"value", "ref", "list", "array", "set", "idref"}, name) && len(named) > 0 {
				name = named[len(named)-1]
			}
			named = append(named, name)
			for k, a := range e.Attr {
				if a.Name.Space == "xmlns" || a.Name.Local == "xmlns" || a.Name.Space == "xsi" {
					continue
				}
				if e.Name.Local == "bean" || e.Name.Space != "" {
					name = a.Name.Local
				}
				changed := func(f func(*xml.Attr)) xml.StartElement {
					c := e.Copy()
					f(&c.Attr[k])
					return c
				}
				what := e.Name.Local + " " + name + ": " + a.Name.Local
				all = append(all,
					change{"the value of " + what, name, with(changed(func(a *xml.Attr) { a.Value += "9" })), false},
					change{"the name of " + what, a.Name.Local + "x", with(changed(func(a *xml.Attr) { a.Name.Local += "x" })), false})
			}
			c := e.Copy()
			c.Attr = append(c.Attr, xml.Attr{Name: xml.Name{Local: "unknown"}, Value: "1"})
			inner := xml.StartElement{Name: xml.Name{Local: "strange"}}
			what := e.Name.Local + " " + name
			all = append(all,
				change{"a new attribute of " + what, "unknown", with(c), true},
				change{"a new element in " + what, "strange", with(e, inner, inner.End()), true})
			if e.Name.Local == "bean" {
				property := xml.StartElement{Name: xml.Name{Local: "property"}, Attr: []xml.Attr{{Name: xml.Name{Local: "name"}, Value: "unknown"}, {Name: xml.Name{Local: "value"}, Value: "1"}}}
				all = append(all, change{"a new property of " + what, "unknown", with(e, property, property.End()), true})
			}
		case xml.EndElement:
			named = named[:len(named)-1]
		case xml.CharData:
			if len(bytes.TrimSpace(e)) > 0 && len(named) > 0 {
				name := named[len(named)-1]
				all = append(all, change{"the text of " + name, name, with(xml.CharData(string(bytes.TrimSpace(e)) + "9")), false})
			}
		}
	}
	return all
}

func read(text string) (tokens []xml.Token, err error) {
	d := xml.NewDecoder(strings.NewReader(strings.TrimPrefix(text, "\ufeff")))
	for {
		token, err := d.RawToken()
		if errors.Is(err, io.EOF) {
			return tokens, nil
		}
		if err != nil {
			return nil, err
		}
		switch token.(type) {
		case xml.StartElement, xml.EndElement, xml.CharData:
			tokens = append(tokens, xml.CopyToken(token))
		}
	}
}

func render(tokens []xml.Token) string {
	var b bytes.Buffer
	for _, token := range tokens {
		switch e := token.(type) {
		case xml.StartElement:
			b.WriteString("<" + qualified(e.Name))
			for _, a := range e.Attr {
				b.WriteString(" " + qualified(a.Name) + `="`)
				_ = xml.EscapeText(&b, []byte(a.Value)) // a buffer takes everything
				b.WriteString(`"`)
			}
			b.WriteString(">")
		case xml.EndElement:
			b.WriteString("</" + qualified(e.Name) + ">")
		case xml.CharData:
			_ = xml.EscapeText(&b, e)
		}
	}
	return b.String()
}

func qualified(n xml.Name) string {
	if n.Space == "" {
		return n.Local
	}
	return n.Space + ":" + n.Local
}
