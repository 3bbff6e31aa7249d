package sequences

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/store/driver"
)

// maxFloors is how many columns a tag may name.
const maxFloors = 8

// floorsOf returns the columns of a source as its tag names them, and why it cannot name
// all of them; neither for a source that feeds none. A tag names a URL by a reference
// alone, so that no password gets into a store.
func (d *database) floorsOf(s *sequences.Source) (all []api.FloorFrom, why string) {
	switch {
	case len(s.Feeds) == 0:
		return nil, ""
	case !sequences.IsReference(d.given):
		return nil, "the URL was given itself, and a tag keeps no passwords: give env:NAME or file:PATH"
	case len(s.Feeds) > maxFloors:
		return nil, fmt.Sprintf("it feeds %d columns, and a tag names up to %d", len(s.Feeds), maxFloors)
	}
	for _, c := range s.Feeds {
		if !c.Index {
			return nil, fmt.Sprintf("%s has no index: %s", c, c.Create)
		}
		all = append(all, api.FloorFrom{URL: d.given, Table: c.Qualified, Column: c.Name})
	}
	return all, ""
}

// keepFloors has a source's tag name the columns, unless it names some, and returns what
// stands in the way. That fails no move: the mark is above them already.
func (d *database) keepFloors(ctx context.Context, to moves.Target, s *sequences.Source) (note string, err error) {
	all, why := d.floorsOf(s)
	if len(all) > 0 {
		tag, err := to.Tag(ctx, s.Tag)
		if err != nil || tag.Deleted || len(define.Shown(tag).FloorFrom) > 0 {
			return "", err
		}
		extra, err := define.WithFloors("", all)
		if err != nil {
			return "", err
		}
		if _, err = to.UpdateTag(ctx, s.Tag, driver.TagUpdate{Extra: &extra}); err != nil {
			why = hapax.Message(err) + "; repeat this, or give hapax tags set " + s.Tag + " --floor-from"
		}
	}
	if why == "" {
		return "", nil
	}
	return fmt.Sprintf("tag %s has no floor_from: %s", s.Tag, why), nil
}

// floorArguments returns the flags by which hapax tags set names columns; empty where a
// name has a comma, by which those flags are taken apart.
func floorArguments(all []api.FloorFrom) string {
	var b strings.Builder
	for _, f := range all {
		text := f.URL + "," + f.Table + "," + f.Column
		if strings.Count(text, ",") != 2 {
			return ""
		}
		b.WriteString(" --floor-from " + signals.Word(text))
	}
	return b.String()
}

// notOurs refuses a tag whose columns are in another database alone: a tag of the same name
// is not the same tag.
func (d *database) notOurs(tag hapax.Tag) error {
	all := define.Shown(tag).FloorFrom
	if len(all) == 0 || !sequences.IsReference(d.given) || slices.ContainsFunc(all, func(f api.FloorFrom) bool { return f.URL == d.given }) {
		return nil
	}
	return fmt.Errorf("%w: the native tag %q is for a column of %s (its floor_from): give that as the database, or --prefix for a tag of its own", hapax.ErrInvalidArgument, tag.Name, all[0].URL)
}

// feeds reports whether a tag names a column of the source.
func (d *database) feeds(s *sequences.Source, tag hapax.Tag) bool {
	return slices.ContainsFunc(define.Shown(tag).FloorFrom, func(f api.FloorFrom) bool {
		return f.URL == d.given && slices.ContainsFunc(s.Feeds, func(c sequences.Column) bool { return c.Qualified == f.Table && c.Name == f.Column })
	})
}
