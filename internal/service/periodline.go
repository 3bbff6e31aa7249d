package service

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/define"
)

// lineTag returns the tag of a period's line, which it makes or revives if its
// parent lives, and the parent. A tag that merely looks like a line is its own.
func (ds *definitions) lineTag(ctx context.Context, name string) (line, parent define.Tag, err error) {
	of, period, _ := define.CutLine(name)
	t, err := ds.store.Definition(ctx, of)
	if errors.Is(err, hapax.ErrTagNotFound) {
		line, err = ds.plainTag(ctx, name, of)
		return line, line, err
	}
	if err != nil {
		return t, t, err
	}
	c, err := ds.opts.keys().Code(t)
	switch {
	case err != nil:
		return t, t, err
	case !c.HasPeriod():
		line, err = ds.plainTag(ctx, name, of)
		return line, line, err
	case t.Deleted:
		return t, t, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, of)
	}
	if _, err := c.ParsePeriod(period); err != nil {
		return t, t, outOfRange("tag", name, fmt.Sprintf("a line of %q, whose numbers restart each %v", of, c.Unit()))
	}
	if err := ds.checkClock(ctx, name); err != nil {
		return t, t, err
	}
	line, err = ds.store.Definition(ctx, name)
	if err == nil && !line.Deleted || err != nil && !errors.Is(err, hapax.ErrTagNotFound) {
		return line, t, err
	}
	def, err := hapax.Tag{
		Name: name, Kind: hapax.KindSegment, Start: t.Start, Step: t.Step, MinStep: t.MinStep, MaxStep: t.MaxStep,
		Delta: t.Delta, Remainder: t.Remainder,
	}.WithDefaults()
	if err != nil {
		return line, t, err
	}
	// Explicit: first use revives no tombstone, and a wrong clock may have retired this line.
	made, err := ds.store.CreateTag(ctx, def, hapax.CreateExplicit)
	switch {
	case err == nil:
		line = line.Now(made)
		ds.observe(hapax.Event{Kind: hapax.EventTagCreated, Tag: name})
	case errors.Is(err, hapax.ErrTagExists): // another node was first
		line, err = ds.store.Definition(ctx, name)
	}
	return line, t, err
}

// plainTag returns a tag that merely looks like a line, if it is there.
func (ds *definitions) plainTag(ctx context.Context, name, parent string) (define.Tag, error) {
	t, err := ds.store.Definition(ctx, name)
	if errors.Is(err, hapax.ErrTagNotFound) {
		err = fmt.Errorf("%w: %q; a name of this form is a period's line of the tag %q, which has none", hapax.ErrTagNotFound, name, parent)
	}
	return t, err
}

// dropLines deletes the lines of a tag that was deleted.
func (ds *definitions) dropLines(ctx context.Context, tag string) error {
	for after := tag + define.LineMark; ; {
		page, err := ds.store.Tags(ctx, after, MaxPage)
		if err != nil {
			return err
		}
		for _, t := range page {
			if !strings.HasPrefix(t.Name, tag+define.LineMark) {
				return nil
			}
			if parent, _, ok := define.CutLine(t.Name); !ok || parent != tag || t.Deleted {
				continue
			}
			if _, err := ds.store.DeleteTag(ctx, t.Name); err != nil && !isGone(err) {
				return err
			}
			ds.changed(t.Name)
		}
		if len(page) < MaxPage {
			return nil
		}
		after = page[len(page)-1].Name
	}
}
