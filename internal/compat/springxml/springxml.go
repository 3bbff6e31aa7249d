// Package springxml reads what Spring's XML files and Java's properties files say, as far
// as the settings of beans go, and sees that everything in them is accounted for: a bean or
// an element is claimed by the reader that knows it, which then gets each of its settings, or else it is
// named as something else's.
package springxml

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hapax-id/hapax/internal/moves"
)

const (
	maxFiles  = 32
	maxNested = 8 // parents of parents, and directories above
)

// Open opens a file, or standard input for -.
type Open = func(path string) (io.ReadCloser, error)

// A Document is what a file says, with those that it imports.
type Document struct {
	// Properties are those of a properties file; nil if it is XML.
	Properties *moves.Settings

	// Beans are those at the top, and Elements what else is there.
	Beans    []*Bean
	Elements []*Element

	// Missing are the imported files that were not found beside the file.
	Missing []string

	account   *moves.Account
	open      Open
	read      map[string]bool
	given     map[string]string // what placeholders stand for
	referred  map[string]bool
	aliases   map[string]string
	locations []location // of files with properties
}

// A location is where a file of a name is looked for.
type location struct{ from, resource string }

// Read reads a file, and the properties that its placeholders stand for, if a file with
// some is named; otherwise those that it names itself, as far as they are found. What it
// imports is looked for from its own directory on, upwards.
func Read(open Open, path, properties string, account *moves.Account) (*Document, error) {
	d := &Document{
		account: account, open: open, read: map[string]bool{}, given: map[string]string{},
		referred: map[string]bool{}, aliases: map[string]string{},
	}
	data, err := d.bytes(path)
	if err != nil {
		return nil, err
	}
	if !isXML(data) {
		if properties != "" {
			return nil, malformed("--properties is for a FILE of XML, and %s is a properties file itself", path)
		}
		all, err := moves.Properties(bytes.NewReader(data))
		if err != nil {
			return nil, malformed("%s: %v", path, err)
		}
		d.Properties = moves.NewSettings(account, all)
		return d, nil
	}
	if err := d.file(path, data); err != nil {
		return nil, err
	}
	if properties != "" {
		return d, d.properties(properties)
	}
	for _, at := range d.locations {
		if found, _, err := d.find(at); err != nil {
			return nil, err
		} else if found != "" {
			if err := d.properties(found); err != nil {
				return nil, err
			}
		}
	}
	return d, nil
}

func (d *Document) bytes(path string) ([]byte, error) {
	in, err := d.open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	// One more than is read, by which a file that is too long shows.
	return io.ReadAll(io.LimitReader(in, MaxBytes+1))
}

// properties reads a file with the values of placeholders.
func (d *Document) properties(path string) error {
	data, err := d.bytes(path)
	if err != nil {
		return err
	}
	if isXML(data) {
		return malformed("%s: it is XML, and no properties file", path)
	}
	all, err := moves.Properties(bytes.NewReader(data))
	if err != nil {
		return malformed("%s: %v", path, err)
	}
	maps.Copy(d.given, all)
	return nil
}

// file reads an XML file, with its imports.
func (d *Document) file(path string, data []byte) error {
	full, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	// Files may import each other.
	if d.read[full] {
		return nil
	}
	if d.read[full] = true; len(d.read) > maxFiles {
		return malformed("more than %d files import each other", maxFiles)
	}
	root, err := parse(data)
	if err == nil && root.Name != "beans" {
		err = malformed("the XML begins with <%s>; want <beans>", root.Name)
	}
	if err == nil {
		err = d.beans(path, root)
	}
	if err != nil && len(d.read) > 1 {
		return malformed("%s: %v", path, err)
	}
	return err
}

// beans reads what is in <beans>.
func (d *Document) beans(path string, e *Element) error {
	for _, a := range e.Attrs {
		if a.Name == "profile" {
			d.account.Refusef("<beans profile="+moves.Quote(a.Value)+">", "whether it counts depends on how Java was started: leave it out, or its attribute profile")
			continue
		}
		d.account.Note(moves.Idle, "<beans "+a.Name+">")
	}
	for _, in := range e.Inner {
		switch in.Name {
		case "bean":
			b := newBean(in)
			switch is := b.Is(); {
			case strings.HasSuffix(is, "PlaceholderConfigurer"):
				d.placeholders(path, b)
			case is == "PropertyOverrideConfigurer":
				d.account.Refusef(b.Title(), "it changes properties of other beans: write them there, and take it out")
			default:
				d.Beans = append(d.Beans, b)
			}
		case "beans":
			if err := d.beans(path, in); err != nil {
				return err
			}
		case "import":
			d.only(in, "resource")
			if err := d.imports(location{path, in.Attr("resource")}); err != nil {
				return err
			}
		case "alias":
			d.only(in, "alias", "name")
			d.aliases[in.Attr("alias")] = in.Attr("name")
			d.account.Note(moves.Idle, "alias "+in.Attr("alias")+" of "+in.Attr("name"))
		case "context:property-placeholder":
			for resource := range strings.SplitSeq(in.Attr("location"), ",") {
				d.locations = append(d.locations, location{path, strings.TrimSpace(resource)})
			}
			d.account.Note("Where ${…} come from, unless --properties is given", in.Attr("location"))
			d.account.Note(moves.Idle, "<"+strings.Join(in.all([]string{in.Name}), " ")+">")
		case "context:property-override":
			d.account.Refusef("<"+in.Name+">", "it changes properties of beans: write them there, and take it out")
		default:
			d.Elements = append(d.Elements, in)
		}
	}
	return nil
}

// only refuses what an element has beside some attributes.
func (d *Document) only(e *Element, known ...string) {
	for _, a := range e.Attrs {
		if !slices.Contains(known, a.Name) {
			d.account.Unknown("<"+e.Name+" "+a.Name+">", strings.Join(known, ", "))
		}
	}
	for _, in := range e.Inner {
		d.account.Unknown("<"+e.Name+">: <"+in.Name+">", strings.Join(known, ", "))
	}
}

// placeholders takes down where a bean says that properties are.
func (d *Document) placeholders(path string, b *Bean) {
	for _, p := range b.Properties {
		if p.Name != "location" && p.Name != "locations" {
			continue
		}
		for _, v := range append(p.Value.list, p.Value) {
			if v.kind == isText {
				d.locations = append(d.locations, location{path, v.text})
				d.account.Note("Where ${…} come from, unless --properties is given", v.text)
			}
		}
	}
	d.account.Note(moves.Idle, b.Title()+": "+strings.Join(b.element.all(nil), " "))
}

// imports reads an imported file.
func (d *Document) imports(at location) error {
	found, data, err := d.find(at)
	if err != nil {
		return err
	}
	if found == "" {
		d.Missing = append(d.Missing, at.resource)
		return nil
	}
	if !isXML(data) {
		return malformed("%s, which %s imports, is no XML", found, at.from)
	}
	d.account.Note("Read as well", at.resource)
	return d.file(found, data)
}

// find looks for a resource of Spring's: beside the file that names it, and, as Java's
// class path is rooted somewhere above, in the directories above that; last by its name
// alone. found is empty if it is nowhere.
func (d *Document) find(at location) (found string, data []byte, err error) {
	name := at.resource
	for _, scheme := range []string{"classpath*:", "classpath:", "file:"} {
		name = strings.TrimPrefix(name, scheme)
	}
	if at.from == "-" || name == "" || strings.ContainsAny(name, "*?:") || strings.Contains(name, "${") {
		return "", nil, nil
	}
	dir := filepath.Dir(at.from)
	full, err := filepath.Abs(dir)
	if err != nil {
		return "", nil, err
	}
	var places []string
	for up := full; ; up = filepath.Dir(up) {
		places = append(places, filepath.Join(up, filepath.FromSlash(name)))
		if filepath.Dir(up) == up || len(places) == maxNested {
			break
		}
	}
	places = append(places, filepath.Join(full, filepath.Base(name)))
	if strings.HasPrefix(at.resource, "file:/") {
		places = []string{filepath.FromSlash(name)}
	}
	for _, place := range places {
		switch data, err := d.bytes(place); {
		case err == nil:
			return place, data, nil
		case !errors.Is(err, fs.ErrNotExist):
			return "", nil, err
		}
	}
	return "", nil, nil
}

// Given returns a property that placeholders may stand for, although nothing refers to it.
func (d *Document) Given(name string) string {
	if d.given[name] == "" {
		return ""
	}
	d.referred[name] = true
	return d.Resolve(name, d.given[name])
}

// Text returns the text of a value, with properties in the place of their names. where
// names it in refusals.
func (d *Document) Text(where string, v Value) string {
	if v.kind != isText {
		d.account.Refusef(where, "want a plain value, and not a bean, a list or another thing")
		return ""
	}
	return d.Resolve(where, v.text)
}

// Secret returns the text of a value that must not be shown, and notes where it is.
func (d *Document) Secret(where string, v Value) string {
	d.account.Note(moves.Hidden, where)
	for rest := v.text; ; {
		_, after, found := strings.Cut(rest, "${")
		name, after, closed := strings.Cut(after, "}")
		if !found || !closed {
			return d.Text(where, v)
		}
		name, _, _ = strings.Cut(name, ":")
		// The secret itself stands under this name, in a file of properties.
		d.account.Note(moves.Hidden, name)
		rest = after
	}
}

// Resolve puts properties in the place of their names.
func (d *Document) Resolve(where, text string) string {
	resolved := strings.TrimSpace(d.fill(text))
	open := moves.Unfilled(resolved)
	switch {
	case open != "":
		d.account.Refusef(where, "%s has no value in the files, and a default counts only if Java was started without one: give a file of properties with it as --properties", open)
		return ""
	case strings.ContainsRune(resolved, unreadable):
		d.account.Refusef(where, "it has letters that cannot be read: save the file as UTF-8")
		return ""
	case strings.Contains(resolved, "#{"):
		d.account.Refusef(where, "it is an expression, which only Spring can evaluate: write the value")
		return ""
	}
	return resolved
}

// fill puts properties in the place of their names.
func (d *Document) fill(text string) string {
	return moves.Placeholders{Values: d.given, Used: d.referred}.Fill(text)
}

// Texts returns the texts of a list, or of a text with commas in it.
func (d *Document) Texts(where string, v Value) (all []string) {
	if v.kind == isList {
		for _, item := range v.list {
			all = append(all, d.Text(where, item))
		}
		return all
	}
	for part := range strings.SplitSeq(d.Text(where, v), ",") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

// Bean returns the bean that a value holds or names. Otherwise the account refuses where, and it
// returns nil.
func (d *Document) Bean(where string, v Value) *Bean {
	switch v.kind {
	case isBean:
		return v.bean
	case isRef:
		if b := d.named(v.ref); b != nil {
			return b
		}
		d.account.Refusef(where, "there is no bean %q in the files", v.ref)
	default:
		d.account.Refusef(where, "want a bean")
	}
	return nil
}

// IsText reports whether a value is a text.
func (v Value) IsText() bool { return v.kind == isText }

func (d *Document) named(id string) *Bean {
	if other, ok := d.aliases[id]; ok {
		id = other
	}
	i := slices.IndexFunc(d.Beans, func(b *Bean) bool { return b.ID == id })
	if i < 0 {
		return nil
	}
	return d.Beans[i]
}

// A Taker takes the value of a setting.
type Taker = func(where string, v Value)

// Claim claims a bean: each of its properties, its parents' among them, goes to the function that takes it
// by its name, and its constructor's arguments to args. idle are names of properties that
// are without effect here. Everything else is refused.
func (d *Document) Claim(b *Bean, takers map[string]Taker, args func(where string, args []Property), idle ...string) {
	b.element.claimed = true
	d.account.Note("Read", b.Title())
	if b.shared {
		d.account.Refusef(b.Title(), "it is abstract; want the bean that is made of it")
	}
	seen := map[string]bool{}
	for level, from := 0, b; ; level++ {
		for _, odd := range from.odd {
			d.account.Unknown(b.Title()+": "+odd, "class, id, name and properties of a bean")
		}
		for _, name := range from.idle {
			d.account.Note(moves.Idle, b.Title()+": "+name)
		}
		for _, p := range from.Properties {
			where := b.Title() + ": " + p.Name
			take, known := takers[p.Name]
			switch {
			case seen[p.Name] && from == b:
				d.account.Refusef(where, "it is given twice")
			case seen[p.Name]:
				d.account.Note(moves.Idle, from.Title()+": "+p.Name)
			case known:
				take(where, p.Value)
			case slices.Contains(idle, p.Name), slices.Contains(idle, "*"):
				d.account.Note(moves.Idle, strings.Join(append([]string{where}, p.Value.names...), " "))
			default:
				d.account.Unknown(where, strings.Join(slices.Sorted(maps.Keys(takers)), ", "))
			}
			seen[p.Name] = true
		}
		for i, arg := range from.Args {
			if arg.Name == "" && (arg.Index < 0 || arg.Index >= len(from.Args) || slices.ContainsFunc(from.Args[:i], func(a Property) bool { return a.Name == "" && a.Index == arg.Index })) {
				d.account.Refusef(b.Title(), "of %d arguments of its constructor, one has the index %d", len(from.Args), arg.Index)
			}
		}
		if len(from.Args) > 0 {
			if args == nil {
				d.account.Refusef(b.Title(), "arguments of its constructor are not known here: give them as properties")
			} else {
				args(b.Title()+": constructor-arg", from.Args)
			}
		}
		if from.parent == "" {
			return
		}
		parent := d.named(from.parent)
		if parent == nil || level == maxNested {
			d.account.Refusef(b.Title(), "there is no bean %q, its parent, in the files", from.parent)
			return
		}
		from, parent.element.claimed = parent, true
	}
}

// ClaimElement claims an element of another schema: each attribute goes to the function that takes it by
// its name. idle are those without effect here. Everything else is refused.
func (d *Document) ClaimElement(e *Element, takers map[string]func(where, value string), idle ...string) {
	e.claimed = true
	for _, a := range e.Attrs {
		where := "<" + e.Name + " " + a.Name + ">"
		switch take, known := takers[a.Name]; {
		case known:
			take(where, d.Resolve(where, a.Value))
		case slices.Contains(idle, a.Name):
			d.account.Note(moves.Idle, where)
		default:
			d.account.Unknown(where, strings.Join(slices.Sorted(maps.Keys(takers)), ", "))
		}
	}
	for _, in := range e.Inner {
		d.account.Unknown("<"+e.Name+">: <"+in.Name+">", "its attributes")
	}
}

// Finish names what nobody has claimed.
func (d *Document) Finish() {
	for _, b := range d.Beans {
		if !b.element.claimed {
			d.account.Note(moves.Elsewhere, b.Title()+": "+strings.Join(b.element.all(nil), " "))
		}
	}
	for _, e := range d.Elements {
		if !e.claimed {
			d.account.Note(moves.Elsewhere, "<"+strings.Join(e.all([]string{e.Name}), " ")+">")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.given)) {
		if !d.referred[name] {
			d.account.Note("Not referred to by what is read, without effect", name)
		}
	}
}
