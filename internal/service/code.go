package service

import (
	"context"
	"errors"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/codec"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/driver"
)

// settleCode returns the definition of a tag to be created as it is stored.
func (ds *definitions) settleCode(ctx context.Context, t hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	if define.IsPeriodLine(t.Name) {
		return t, &hapax.ValueError{Field: "tag", Value: t.Name, Allowed: "another name: those of this form are the lines of tags whose numbers restart with each period", Err: hapax.ErrInvalidTag}
	}
	d, err := define.Read(t)
	if err == nil {
		d, err = ds.opts.keys().Canonical(d)
	}
	if err == nil {
		d, err = ds.freeze(d)
	}
	if err != nil || mode != hapax.CreateExplicit {
		return d.Tag, err
	}
	was, err := admin(ctx, ds.core, func(ctx context.Context) (hapax.Tag, error) { return ds.store.Tag(ctx, t.Name) })
	switch {
	case errors.Is(err, hapax.ErrTagNotFound):
		return d.Tag, nil
	case err != nil || !was.Deleted:
		return d.Tag, err // CreateTag says that it exists
	}
	d, err = ds.opts.keys().Revive(was, d, t.Extra)
	return d.Tag, err
}

// updateCode is UpdateTag where the Extra changes.
func (ds *definitions) updateCode(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
	select {
	case ds.recoding <- struct{}{}: // one at a time, so that none is lost among the old ones
		defer func() { <-ds.recoding }()
	case <-ctx.Done():
		return hapax.Tag{}, &hapax.WaitError{Cause: hapax.ErrRefillPending, Context: context.Cause(ctx)}
	}
	t, err := ds.store.Tag(ctx, name)
	if err != nil {
		return t, err
	}
	extra, err := ds.opts.keys().Supersede(t, *u.Extra)
	if err != nil {
		return t, err
	}
	least, note, err := ds.readFloors(ctx, t, *u.Extra)
	if err != nil {
		return t, err
	}
	if least > 0 && (u.Floor == nil || *u.Floor < least) {
		u.Floor = &least
	}
	u.Extra = &extra
	was := t.Mark
	if t, err = ds.store.UpdateTag(ctx, name, u); err != nil {
		return t, err
	}
	if least > was {
		ds.wasBehind("tag "+name, name, was, least)
	}
	return t, note(ctx)
}

// codes read and show the texts of tags' numbers.
type codes struct {
	*core
	*definitions

	tags *tagTable
}

// Issued are numbers with the texts that show them.
type Issued struct {
	Period string // the period of all of them; empty where numbers never restart
	IDs    []hapax.ID
	Codes  []string
}

// NextCodes issues n numbers, 1 to Options.MaxCount, of a tag that has a code,
// with their texts. Errors, beyond those of NextN: ErrInvalidArgument for a tag
// without a code, ErrLineExhausted where the code cannot show the number.
func (s *Service) NextCodes(ctx context.Context, tag string, n int) (Issued, error) {
	if n < 1 || n > s.opts.MaxCount {
		return Issued{}, outOfRange("count", n, fmt.Sprintf("1 to %d", s.opts.MaxCount))
	}
	caller := auth.FromContext(ctx)
	if err := s.charge(ctx, tag, int64(n)); err != nil {
		return Issued{}, err
	}
	taken := 0
	res := Issued{IDs: make([]hapax.ID, n)}
	var c *define.Code
	var period codec.Period
	take := func(ctx context.Context, dst []hapax.ID) (n int, err error) {
		defer func() { taken += n }()
		err = s.issue(ctx, tag, func(ctx context.Context, l *line) (err error) {
			if c = l.code; c == nil {
				return errNoCode(tag)
			}
			if l.periods != nil {
				period, n, err = l.periods.take(ctx, dst)
				return err
			}
			n, err = l.issuer.NextN(ctx, dst)
			return err
		})
		return n, err
	}
	err := s.through(ctx, tag, func(ctx context.Context, l *line) error {
		if l.code == nil { // before the plugins are asked
			return errNoCode(tag)
		}
		_, err := l.plugged.Around(ctx, res.IDs, take)
		return err
	})
	caller.ReturnNumbers(int64(n - taken))
	if err != nil {
		return Issued{}, err // what was issued before is a gap
	}
	res.Period = period.String()
	res.Codes, err = c.Texts(period, res.IDs)
	return res, err
}

func errNoCode(tag string) error {
	return outOfRange("tag", tag, "a tag that has a code; hapax tags set TAG --code SPEC gives it one")
}

// ParsedCode is what a text says.
type ParsedCode = define.ParsedCode

// ParseCode takes the text of one of the tag's numbers apart. It says nothing
// about whether the number was issued. ErrInvalidID tells the position of the part that is
// wrong; ErrTagNotFound, ErrInvalidArgument for a tag without a code.
func (cs *codes) ParseCode(ctx context.Context, tag, text string) (ParsedCode, error) {
	c, err := cs.codeOf(ctx, tag)
	if err != nil {
		return ParsedCode{}, err
	}
	return c.Parse(text)
}

// codeOf returns the tag's code, which it must have.
func (cs *codes) codeOf(ctx context.Context, tag string) (*define.Code, error) {
	var c *define.Code
	if l := cs.tags.find(tag); l != nil {
		c = l.code
	} else {
		t, err := cs.Tag(ctx, tag)
		if err == nil {
			c, err = cs.opts.code(t)
		}
		if err != nil {
			return nil, err
		}
	}
	if c == nil {
		return nil, errNoCode(tag)
	}
	return c, nil
}
