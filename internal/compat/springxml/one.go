package springxml

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
)

// One returns the bean of one of the classes, by their names without packages: the one with
// the id, or the only one. Finish names the others. title is what the beans are.
func (d *Document) One(title, id string, classes ...string) (*Bean, error) {
	var all []*Bean
	var names []string
	for _, b := range d.Beans {
		if slices.Contains(classes, b.Is()) {
			all, names = append(all, b), append(names, b.Title())
		}
	}
	switch chosen := d.named(id); {
	case len(all) == 0:
		return nil, fmt.Errorf("%w: the file has no %s: no bean of the class %s", hapax.ErrInvalidArgument, title, strings.Join(classes, " or "))
	case id != "" && slices.Contains(all, chosen):
		return chosen, nil
	case id != "":
		return nil, &hapax.ValueError{Field: "--bean", Value: id, Allowed: "the id of a " + title + ": " + strings.Join(names, ", "), Err: hapax.ErrInvalidArgument}
	case len(all) > 1:
		return nil, fmt.Errorf("%w: the file has more than one %s: %s; choose one with --bean ID, and import each by itself", hapax.ErrInvalidArgument, title, strings.Join(names, ", "))
	}
	return all[0], nil
}

// From refuses a bean whose class is not in one of the packages of a system: it has the simple
// name of a class that is known here, and may do anything.
func (d *Document) From(system string, b *Bean, packages ...string) {
	if !slices.ContainsFunc(packages, func(p string) bool { return strings.HasPrefix(b.Class, p+".") }) {
		d.account.Refusef(b.Title(), "its class is not %s, which is in the package %s, and what it does cannot be told from here: where it is an unchanged copy, name the original in a copy of FILE",
			system, strings.Join(packages, " or "))
	}
}

// OnlyXML refuses the id of a bean where a properties file is read.
func OnlyXML(id string) error {
	if id == "" {
		return nil
	}
	return &hapax.ValueError{Field: "--bean", Value: id, Allowed: "none for a properties file, which has no beans", Err: hapax.ErrInvalidArgument}
}
