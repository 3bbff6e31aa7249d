package springxml

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/hapax-id/hapax"
)

// Limits of a file.
const (
	MaxBytes    = 1 << 20
	maxDepth    = 32
	maxElements = 10_000
)

// An Element is one of a file, with all that is in it.
type Element struct {
	Name  string // with its prefix, such as dubbo:registry
	Attrs []Attr // but for those that name schemas
	Text  string // its own, without white space around it
	Inner []*Element

	claimed bool
}

// An Attr is an attribute.
type Attr struct{ Name, Value string }

// Attr returns an attribute's value.
func (e *Element) Attr(name string) string {
	for _, a := range e.Attrs {
		if a.Name == name {
			return a.Value
		}
	}
	return ""
}

// all lists the names of all that is in an element.
func (e *Element) all(names []string) []string {
	for _, a := range e.Attrs {
		names = append(names, a.Name)
	}
	for _, in := range e.Inner {
		name := in.Attr("name")
		if name == "" {
			name = in.Name
		}
		names = in.all(append(names, name))
	}
	return names
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", hapax.ErrInvalidArgument, fmt.Sprintf(format, args...))
}

// trimMark cuts a byte order mark off.
func trimMark(data []byte) []byte { return bytes.TrimPrefix(data, []byte("\ufeff")) }

// isXML reports whether a file is XML, and not properties.
func isXML(data []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(trimMark(data)), []byte("<")) }

// parse reads an XML file. It follows no reference out of it: no entity, no schema.
func parse(data []byte) (*Element, error) {
	if len(data) > MaxBytes {
		return nil, malformed("the file has %d bytes; up to %d are read", len(data), MaxBytes)
	}
	var root *Element
	var stack []*Element
	elements := 0
	data, err := inUTF8(trimMark(data))
	if err != nil {
		return nil, err
	}
	d := xml.NewDecoder(bytes.NewReader(data))
	// inUTF8 has done it.
	d.CharsetReader = func(_ string, in io.Reader) (io.Reader, error) { return in, nil }
	for {
		// Raw: the decoder would put the addresses of schemas in the place of prefixes.
		token, err := d.RawToken()
		if errors.Is(err, io.EOF) && len(stack) == 0 && root != nil {
			return root, nil
		}
		if err != nil {
			return nil, malformed("the XML cannot be read: %v", err)
		}
		switch t := token.(type) {
		case xml.Directive:
			if bytes.ContainsRune(t, '[') {
				return nil, malformed("a document type with declarations of its own is not read")
			}
		case xml.StartElement:
			if elements++; elements > maxElements || len(stack) > maxDepth {
				return nil, malformed("more than %d elements, or more than %d deep", maxElements, maxDepth)
			}
			e := newElement(t)
			switch {
			case len(stack) > 0:
				last := stack[len(stack)-1]
				last.Inner = append(last.Inner, e)
			case root == nil:
				root = e
			default:
				return nil, malformed("the XML has more than one element at the top")
			}
			stack = append(stack, e)
		case xml.CharData:
			if len(stack) > 0 {
				stack[len(stack)-1].Text += strings.TrimSpace(string(t))
			}
		case xml.EndElement:
			if len(stack) == 0 || stack[len(stack)-1].Name != qualified(t.Name) {
				return nil, malformed("the XML ends an element %s that it does not begin", qualified(t.Name))
			}
			stack = stack[:len(stack)-1]
		}
	}
}

var declared = regexp.MustCompile(`^<\?xml[^>]*\sencoding=["']([^"']+)["']`)

// unreadable stands for a letter of a character set that is not read.
const unreadable = '\uFFFD'

// inUTF8 returns an XML file in UTF-8. Of China's character sets ASCII alone is read, and
// the rest, which comments have, is unreadable.
func inUTF8(data []byte) ([]byte, error) {
	found := declared.FindSubmatch(data)
	if found == nil {
		return data, nil
	}
	other := unreadable
	switch set := strings.ToLower(string(found[1])); set {
	case "utf-8", "utf8":
		return data, nil
	case "iso-8859-1", "latin1":
		// Each byte is the letter of its number.
		other = 0
	case "us-ascii", "ascii", "gbk", "gb2312", "gb18030", "windows-1252":
	default:
		return nil, malformed("it is in %q: save it as UTF-8", set)
	}
	var b strings.Builder
	for _, c := range data {
		if c >= utf8.RuneSelf && other != 0 {
			b.WriteRune(other)
		} else {
			b.WriteRune(rune(c))
		}
	}
	return []byte(b.String()), nil
}

func newElement(t xml.StartElement) *Element {
	e := &Element{Name: qualified(t.Name)}
	for _, a := range t.Attr {
		name := qualified(a.Name)
		if name == "xmlns" || strings.HasPrefix(name, "xmlns:") || strings.HasPrefix(name, "xsi:") {
			continue
		}
		e.Attrs = append(e.Attrs, Attr{name, a.Value})
	}
	return e
}

// qualified returns a name with its prefix; that of Spring's own schema is left out.
func qualified(n xml.Name) string {
	if n.Space == "" || n.Space == "beans" {
		return n.Local
	}
	return n.Space + ":" + n.Local
}
