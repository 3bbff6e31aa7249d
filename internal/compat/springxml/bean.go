package springxml

import (
	"slices"
	"strconv"
	"strings"
)

// A Bean is a <bean>, as Spring makes an object of it.
type Bean struct {
	ID         string // attribute id, or else name
	Class      string // the full name
	Properties []Property
	Args       []Property // of its constructor

	element *Element
	parent  string
	shared  bool     // it is abstract: others have it as their parent
	idle    []string // attributes of Spring's that do not matter
	odd     []string // what is not understood
}

// A Property is one of a bean, or an argument of its constructor.
type Property struct {
	Name  string // of an argument it may be empty
	Index int    // of an argument
	Value Value
}

// A Value is a text, a bean, or a list of values.
type Value struct {
	text string
	ref  string
	bean *Bean
	list []Value
	kind valueKind

	names []string // of its parts, where it is not understood
}

type valueKind int

const (
	notUnderstood valueKind = iota
	isText
	isRef
	isBean
	isList
)

// Is returns the simple name of the class.
func (b *Bean) Is() string { return b.Class[strings.LastIndexByte(b.Class, '.')+1:] }

// Title names a bean in messages.
func (b *Bean) Title() string {
	name := b.Class
	if name == "" {
		name = "parent " + b.parent
	}
	if b.ID == "" {
		return "bean of class " + name
	}
	return "bean " + b.ID + " (" + name + ")"
}

// lifecycle are attributes of a bean that say how Spring keeps it.
var lifecycle = strings.Fields("init-method destroy-method lazy-init depends-on primary autowire autowire-candidate dependency-check")

func newBean(e *Element) *Bean {
	b := &Bean{element: e, Class: e.Attr("class"), ID: e.Attr("id"), parent: e.Attr("parent")}
	if b.ID == "" {
		b.ID, _, _ = strings.Cut(e.Attr("name"), ",")
	}
	for _, a := range e.Attrs {
		prefix, name, _ := strings.Cut(a.Name, ":")
		switch {
		case a.Name == "class", a.Name == "id", a.Name == "parent", a.Name == "name" && a.Value == b.ID:
		case a.Name == "abstract" && a.Value == "false", a.Name == "scope" && a.Value == "singleton", slices.Contains(lifecycle, a.Name):
			b.idle = append(b.idle, a.Name)
		case a.Name == "abstract":
			b.shared = true
		case prefix == "p":
			b.Properties = append(b.Properties, shortProperty(name, a.Value))
		case prefix == "c":
			p := shortProperty(name, a.Value)
			if digits, ok := strings.CutPrefix(p.Name, "_"); ok {
				var err error
				if p.Index, err = strconv.Atoi(digits); err == nil {
					p.Name = ""
				}
			}
			b.Args = append(b.Args, p)
		default:
			b.odd = append(b.odd, a.Name)
		}
	}
	for _, in := range e.Inner {
		switch in.Name {
		case "property":
			p := Property{Name: in.Attr("name"), Value: newValue(in)}
			b.strange(in, "name", "value", "ref")
			b.Properties = append(b.Properties, p)
		case "constructor-arg":
			p := Property{Name: in.Attr("name"), Index: len(b.Args), Value: newValue(in)}
			if text := in.Attr("index"); text != "" {
				n, err := strconv.Atoi(text)
				if err != nil {
					b.odd = append(b.odd, "index="+text)
				}
				p.Index = n
			}
			b.strange(in, "name", "value", "ref", "index", "type")
			if in.Attr("type") != "" {
				b.idle = append(b.idle, "type="+in.Attr("type"))
			}
			b.Args = append(b.Args, p)
		case "description", "meta", "qualifier":
			b.idle = append(b.idle, in.all([]string{in.Name})...)
		default:
			b.odd = append(b.odd, in.Name)
		}
	}
	return b
}

// strange notes attributes of an element that are not understood.
func (b *Bean) strange(e *Element, known ...string) {
	for _, a := range e.Attrs {
		if !slices.Contains(known, a.Name) {
			b.odd = append(b.odd, e.Name+" "+e.Attr("name")+": "+a.Name)
		}
	}
}

func shortProperty(name, value string) Property {
	if name, ok := strings.CutSuffix(name, "-ref"); ok {
		return Property{Name: name, Value: Value{ref: value, kind: isRef}}
	}
	return Property{Name: name, Value: Value{text: value, kind: isText}}
}

// newValue returns the value of a property or an argument.
func newValue(e *Element) Value {
	given := 0
	var v Value
	for _, a := range e.Attrs {
		switch a.Name {
		case "value":
			given, v = given+1, Value{text: a.Value, kind: isText}
		case "ref":
			given, v = given+1, Value{ref: a.Value, kind: isRef}
		}
	}
	for _, in := range e.Inner {
		if in.Name == "description" {
			continue
		}
		given, v = given+1, newItem(in)
	}
	if given != 1 || e.Text != "" {
		return Value{names: e.all(nil)}
	}
	return v
}

// newItem returns the value that an element is.
func newItem(e *Element) Value {
	switch e.Name {
	case "value":
		if len(e.Inner) == 0 && len(e.Attrs) == 0 {
			return Value{text: e.Text, kind: isText}
		}
	case "ref", "idref":
		if len(e.Attrs) == 1 && len(e.Inner) == 0 && (e.Attrs[0].Name == "bean" || e.Attrs[0].Name == "local") {
			return Value{ref: e.Attrs[0].Value, kind: isRef}
		}
	case "bean":
		return Value{bean: newBean(e), kind: isBean}
	case "list", "array", "set":
		v := Value{kind: isList}
		for _, in := range e.Inner {
			v.list = append(v.list, newItem(in))
		}
		if len(e.Attrs) == 0 || len(e.Attrs) == 1 && e.Attrs[0].Name == "value-type" {
			return v
		}
	}
	return Value{names: e.all([]string{e.Name})}
}
