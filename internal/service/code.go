package service

import (
	"context"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/codec"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/service/define"
)

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
		// Counted where numbers are issued: those that a plugin refuses afterwards are used up, and stay
		// charged.
		defer func() { taken += n }()
		err = s.issue(ctx, tag, func(ctx context.Context, l *line) (err error) {
			// Of the line that issues, which may have been opened anew with another code since the plugins
			// were asked.
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
		t, err := cs.definition(ctx, tag)
		if err == nil {
			c, err = cs.opts.keys().Code(t)
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

// checkBegun refuses a period's line before its period begins: what is taken from it then
// is missing at the beginning of the period.
func (cs *codes) checkBegun(ctx context.Context, name string) error {
	parent, period, ok := define.CutLine(name)
	if !ok {
		return nil
	}
	c, err := cs.codeOf(ctx, parent)
	if err != nil || !c.HasPeriod() {
		return nil //nolint:nilerr // no line of a period, as far as is known; a store that is away grants nothing, so only numbers in hand can be taken
	}
	p, err := c.ParsePeriod(period)
	if err != nil {
		return nil //nolint:nilerr // likewise
	}
	from, _, err := c.Bounds(p)
	if err != nil || !from.After(cs.now()) {
		return err
	}
	return fmt.Errorf("%w: the period of %q begins at %s; a token takes numbers of it earlier only if its tags name lines of periods, such as %s*",
		api.ErrPermissionDenied, name, from.Format(time.RFC3339), parent+define.LineMark)
}

// Codes returns the texts of numbers that were taken from a line of the tag.
func (cs *codes) Codes(ctx context.Context, tag, line string, ids []hapax.ID) (Issued, error) {
	c, err := cs.codeOf(ctx, tag)
	if err != nil {
		return Issued{}, err
	}
	var p codec.Period
	if c.HasPeriod() {
		_, period, _ := define.CutLine(line)
		if p, err = c.ParsePeriod(period); err != nil {
			return Issued{}, outOfRange("line", line, "a period's line of "+tag)
		}
	}
	texts, err := c.Texts(p, ids)
	return Issued{Period: p.String(), IDs: ids[:len(texts)], Codes: texts}, err
}
