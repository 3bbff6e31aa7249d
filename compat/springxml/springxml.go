// Package springxml reads what Spring's XML files and Java's properties files say, as far
// as the settings of beans go. It follows no reference out of the file: no entity, no
// import, no schema.
package springxml

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/hapax-id/hapax"
)

// Limits of a file.
const (
	MaxBytes    = 1 << 20
	maxDepth    = 32
	maxElements = 10_000
	maxKeys     = 10_000
	maxNested   = 8 // placeholders in the values of placeholders
)

// A Bean is an element with its attributes and the properties below it: a <bean>, or
// one of another schema, such as <dubbo:registry>.
type Bean struct {
	Element    string            // the name without its prefix
	ID         string            // attribute id, or else name
	Class      string            // the full name; empty for other elements
	Properties map[string]string // values as text, references as the name that they refer to
}

// A File is what was read.
type File struct {
	Beans      []Bean            // in the order of the file, nested ones behind those around them
	Properties map[string]string // of a properties file
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", hapax.ErrInvalidArgument, fmt.Sprintf(format, args...))
}

// Parse reads a file of either kind. In the values of an XML file ${name} and
// ${name:default} stand for the given properties.
func Parse(data []byte, given map[string]string) (File, error) {
	if len(data) > MaxBytes {
		return File{}, malformed("the file has %d bytes; up to %d are read", len(data), MaxBytes)
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("<")) {
		beans, err := parseXML(data)
		for i := range beans {
			for key, value := range beans[i].Properties {
				beans[i].Properties[key] = resolve(value, given, maxNested, new(int))
			}
		}
		return File{Beans: beans}, err
	}
	properties, err := parseProperties(string(data))
	return File{Properties: properties}, err
}

// parseXML reads beans, by a stack of what is open.
func parseXML(data []byte) ([]Bean, error) {
	type open struct {
		bean     int    // index in beans of the bean that this element is part of; -1: none
		property string // the property that this element is part of
		text     bool   // its text is that property's value
	}
	var beans []Bean
	stack := []open{{bean: -1}}
	elements := 0
	d := xml.NewDecoder(bytes.NewReader(data))
	for {
		token, err := d.RawToken()
		if errors.Is(err, io.EOF) && len(stack) == 1 {
			return beans, nil
		}
		if err != nil {
			return nil, malformed("the XML cannot be read: %v", err)
		}
		switch e := token.(type) {
		case xml.Directive:
			if bytes.ContainsRune(e, '[') {
				return nil, malformed("a document type with declarations of its own is not read")
			}
		case xml.StartElement:
			if elements++; elements > maxElements || len(stack) > maxDepth {
				return nil, malformed("more than %d elements, or more than %d deep", maxElements, maxDepth)
			}
			o := stack[len(stack)-1]
			o.text = false
			attr := attributes(e)
			switch name := e.Name.Local; {
			case name == "property" && o.bean >= 0 && beans[o.bean].Class != "":
				o.property = attr["name"]
				if value, ok := firstOf(attr, "value", "ref"); ok {
					beans[o.bean].Properties[o.property] = value
				}
			case name == "value":
				o.text = o.property != ""
			case name == "ref" && o.property != "":
				value, _ := firstOf(attr, "bean", "local")
				beans[o.bean].Properties[o.property] = value
			case name == "bean" || e.Name.Space != "" && name != "beans":
				b := newBean(e, attr)
				if o.property != "" {
					beans[o.bean].Properties[o.property] = b.Class
				}
				beans = append(beans, b)
				o = open{bean: len(beans) - 1}
			}
			stack = append(stack, o)
		case xml.CharData:
			if o := stack[len(stack)-1]; o.text {
				beans[o.bean].Properties[o.property] += strings.TrimSpace(string(e))
			}
		case xml.EndElement:
			if stack = stack[:len(stack)-1]; len(stack) == 0 {
				return nil, malformed("the XML ends an element that it does not begin")
			}
		}
	}
}

func attributes(e xml.StartElement) map[string]string {
	found := map[string]string{}
	for _, a := range e.Attr {
		if a.Name.Space == "" {
			found[a.Name.Local] = a.Value
		}
	}
	return found
}

// newBean returns an element. Its properties are its attributes unless it is a <bean>,
// which has attributes of its own and those of the prefix p.
func newBean(e xml.StartElement, attr map[string]string) Bean {
	b := Bean{Element: e.Name.Local, Class: attr["class"], Properties: map[string]string{}}
	b.ID, _ = firstOf(attr, "id", "name")
	if b.Element != "bean" || e.Name.Space != "" {
		b.Class = ""
		maps.Copy(b.Properties, attr)
	}
	for _, a := range e.Attr {
		if a.Name.Space == "p" {
			b.Properties[strings.TrimSuffix(a.Name.Local, "-ref")] = a.Value
		}
	}
	return b
}

func firstOf(m map[string]string, keys ...string) (string, bool) {
	for _, key := range keys {
		if value, ok := m[key]; ok {
			return value, true
		}
	}
	return "", false
}

// resolve puts properties in the place of their names, and counts how often. A name that
// is not known stays.
func resolve(text string, given map[string]string, depth int, done *int) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		name, after, closed := strings.Cut(rest, "}")
		if !found || !closed || depth == 0 || *done == maxKeys || b.Len() > MaxBytes {
			return b.String() + text
		}
		*done++
		key, standard, hasStandard := strings.Cut(name, ":")
		value, ok := given[key]
		switch {
		case ok:
			value = resolve(value, given, depth-1, done)
		case hasStandard:
			value = standard
		default:
			value = "${" + name + "}"
		}
		b.WriteString(before + value)
		text = after
	}
}

// parseProperties reads a properties file: a key and a value with =, : or space between
// them, comments after # or !, and lines that a backslash continues.
func parseProperties(text string) (map[string]string, error) {
	found := map[string]string{}
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimLeft(lines[i], " \t\f")
		for strings.HasSuffix(line, `\`) && i+1 < len(lines) {
			i++
			line = strings.TrimSuffix(line, `\`) + strings.TrimLeft(lines[i], " \t\f")
		}
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		at := strings.IndexAny(line, "=: \t")
		if at < 1 {
			return nil, malformed("line %d, %.40q, is no KEY=VALUE", i+1, line)
		}
		if len(found) == maxKeys {
			return nil, malformed("more than %d properties", maxKeys)
		}
		value := strings.TrimLeft(line[at:], " \t")
		if value != "" && (value[0] == '=' || value[0] == ':') {
			value = value[1:]
		}
		found[strings.TrimSpace(line[:at])] = strings.TrimSpace(value)
	}
	return found, nil
}

// ReadFiles reads a file, and the properties that its placeholders stand for, if a file
// with some is named. Parse refuses what is too long.
func ReadFiles(open func(path string) (io.ReadCloser, error), path, properties string) (data []byte, given map[string]string, err error) {
	read := func(path string) ([]byte, error) {
		in, err := open(path)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		return io.ReadAll(io.LimitReader(in, MaxBytes+1))
	}
	if properties != "" {
		text, err := read(properties)
		if err != nil {
			return nil, nil, err
		}
		f, err := Parse(text, nil)
		if err == nil && f.Properties == nil {
			err = errors.New("it is XML, and no properties file")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", properties, err)
		}
		given = f.Properties
	}
	data, err = read(path)
	return data, given, err
}
