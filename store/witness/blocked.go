package witness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A tag whose row cannot be read, such as after an edit by hand, blocks its own line alone:
// nothing is granted of it, surveys and healing go on without it. So does a row that can be read, and is
// of another kind, pool, delta or remainder than the tag had: it is taken for unreadable. It may come back lower than it
// was, when a person mends it, and nobody may be left by then who knows better: healing cannot
// raise it, and nodes end. So each node that finds it owes the fleet what its witness knows of
// the line, and a healer what all know: in a row of driver.TableGuard, which every survey takes
// into its witness before it compares. A mended row that is lower is behind then, for every
// node, and is healed.
//
//	readable -> unreadable -> owed -> mended -+-> at or above what is owed -> readable
//	                                          +-> below: fence, healing ----> readable
//
// A node that has found the row unreadable grants nothing of a mended one before its next survey.

// rowOwed begins the names of the rows of driver.TableGuard that tell how far lines were granted
// that could not be read. The line follows.
const rowOwed = "owed/"

// An owedLine is what is known of a line that cannot be read.
type owedLine struct {
	Pair
	Def def `json:"def,omitzero"`
}

// surer returns one of two definitions of a line that differ. Of the same kind it is that whose numbers lie
// further apart: whoever issues every number may issue another region's, and whoever issues every second one
// only leaves some out. Of different kinds it is that of the account that knows the line further. The other
// one may have been learnt from the row that blocks the line, when no account knew better.
func (o owedLine) surer(other owedLine) def {
	if o.Def.Kind == other.Def.Kind && o.Def.Pool == other.Def.Pool && o.Def.Delta != other.Def.Delta {
		if other.Def.Delta > o.Def.Delta {
			return other.Def
		}
		return o.Def
	}
	if other.Mark > o.Mark {
		return other.Def
	}
	return o.Def
}

// owedLines are lines that are owed, by name.
type owedLines map[string]owedLine

// owedIn finds the lines that are owed among the rows of driver.TableGuard.
func owedIn(rows map[string][]byte) (owedLines, error) {
	all := owedLines{}
	for name, raw := range rows {
		if line, ok := strings.CutPrefix(name, rowOwed); ok {
			var o owedLine
			if err := driver.DecodeRow(driver.TableGuard, name, raw, &o); err != nil {
				return nil, err
			}
			all[line] = o
		}
	}
	return all, nil
}

// readOwedLine reads one; nil: none.
func readOwedLine(ctx context.Context, rows driver.Rows, line string) (owed *owedLine, raw []byte, err error) {
	raw, err = rows.Row(ctx, driver.TableGuard, rowOwed+line)
	if err != nil || raw == nil {
		return nil, nil, unavailable(err)
	}
	owed = new(owedLine)
	return owed, raw, driver.DecodeRow(driver.TableGuard, rowOwed+line, raw, owed)
}

// readOwed reads them all.
func readOwed(ctx context.Context, s store) (owedLines, error) {
	rows, err := readRows(ctx, s, driver.TableGuard)
	if err != nil {
		return nil, err
	}
	return owedIn(rows)
}

// above returns the pairs that a record lacks.
func (all owedLines) above(known record) map[string]Pair {
	pairs := map[string]Pair{}
	for line, o := range all {
		if p, ok := known.Lines[line]; !ok || p.Less(o.Pair) {
			pairs[line] = o.Pair
		}
	}
	return pairs
}

// owes returns how far a line was granted, as far as anybody knows or has stated; a line that
// nobody knows is owed to nobody.
func (a *account) owes(line string) (p Pair, ok bool) {
	p, ok = a.lines.pairs[line]
	p.Mark = max(p.Mark, a.stated(line, a.lines.defs))
	return p, ok
}

// covers reports whether all is owed that an account knows of lines that cannot be read.
func (all owedLines) covers(a *account, have stored) bool {
	for line := range have.unread {
		if want, ok := a.owes(line); ok && all[line].above(want) != all[line].Pair {
			return false
		}
	}
	return true
}

// learnOwed has an account know what is owed already.
func (a *account) learnOwed(ctx context.Context, s store) error {
	owed, err := readOwed(ctx, s)
	for line, o := range owed {
		d := o.Def
		if _, known := a.lines.pairs[line]; known && !d.isAnother(a.lines.defs[line]) {
			d = a.lines.defs[line] // which is later
		}
		a.learn(map[string]Pair{line: o.Pair}, map[string]def{line: d})
	}
	return err
}

// owe has the store keep what an account knows of lines that cannot be read.
func (a *account) owe(ctx context.Context, s store, have stored) error {
	for line := range have.unread {
		if p, ok := a.owes(line); ok {
			if err := owe(ctx, s, line, owedLine{p, a.lines.defs[line]}); err != nil {
				return err
			}
		}
	}
	return nil
}

// lacking returns the pairs of the lines that are to be raised, and can be.
func (a *account) lacking(have stored) map[string]Pair {
	wants := a.wants(have.lines)
	maps.DeleteFunc(wants, func(line string, _ Pair) bool { return have.unread[line] })
	return wants
}

// owe has the store keep what is known of a line.
func owe(ctx context.Context, rows driver.Rows, line string, o owedLine) error {
	old, raw, err := readOwedLine(ctx, rows, line)
	if err != nil {
		return err
	}
	if old != nil {
		pair := o.Pair.above(old.Pair)
		if o = (owedLine{pair, old.surer(o)}); pair == old.Pair {
			return nil
		}
	}
	ok, err := rows.SwapRow(ctx, driver.TableGuard, rowOwed+line, raw, driver.EncodeRow(o))
	if err == nil && !ok {
		err = fmt.Errorf("%w: row %q was changed meanwhile", hapax.ErrStoreUnavailable, rowOwed+line)
	}
	return unavailable(err)
}

// learnOwed takes what is owed into the witness, and into what was known of it. That is safe
// whatever the store is: the lines were granted so far.
func (g *Guarded) learnOwed(owed owedLines, known record) error {
	if len(owed) == 0 {
		return nil
	}
	lines, defs := owed.newTo(known)
	maps.Copy(known.Lines, lines)
	maps.Copy(known.Defs, defs)
	return g.witness.commit(func(b *record) error {
		b.Lines, b.Defs = owed.newTo(g.witness.state)
		if len(b.Lines) == 0 {
			return errNoChange
		}
		return nil
	})
}

// newTo returns the lines that a record lacks, or has as another one; see isAnother.
func (all owedLines) newTo(known record) (pairs map[string]Pair, defs map[string]def) {
	pairs, defs = all.above(known), map[string]def{}
	for line, o := range all {
		was := owedLine{known.Lines[line], known.Defs[line]}
		d := o.Def
		if _, ok := known.Lines[line]; ok && was.Def.isAnother(d) {
			if d = o.surer(was); d == o.Def {
				pairs[line] = was.Pair.max(o.Pair)
			}
		}
		if _, ok := pairs[line]; ok {
			defs[line] = d
		}
	}
	return pairs, defs
}

// settleUnread takes the end of a survey: which lines it could not read. What the witness knows of
// them is owed; what is owed of a line that was read, and was compared, is not any more. owed is nil where
// that was not looked for.
func (g *Guarded) settleUnread(ctx context.Context, s store, known record, unread map[string]bool, owed owedLines) error {
	g.mu.Lock()
	blocked, sighted := g.blocked, g.sighted
	if g.blocked = unread; owed != nil {
		g.sighted = owed
	}
	serving := g.state == Serving
	g.mu.Unlock()
	if !serving {
		return nil
	}
	rows, news := pulsed{s, g, s, nil}, false
	for line := range unread {
		p, ok := known.Lines[line]
		if o, is := owed[line]; ok && (!is || o.Less(p)) {
			if err := owe(ctx, rows, line, owedLine{p, known.Defs[line]}); err != nil {
				return err
			}
			news = true
		}
	}
	for line, o := range owed {
		if unread[line] {
			continue
		}
		next, is := o.corrected(owedLine{known.Lines[line], known.Defs[line]})
		// To this process the row was never blocked: it leaves the one for which it is the time to look.
		if was, seen := sighted[line]; !is || next == nil && !blocked[line] && !(seen && was == o) {
			continue
		}
		if _, err := rows.SwapRow(ctx, driver.TableGuard, rowOwed+line, driver.EncodeRow(o), next); err != nil {
			return err
		}
		news = news || next != nil
	}
	if news { // all survey the store then, and know what is owed
		return tellChange(ctx, rows)
	}
	return nil
}

// corrected returns the row of what is owed of a line that is read again; nil: nothing is. Its account would owe
// it again as long as it knows the line as another one: it is to learn of numbers that lie further apart. It
// reports false where neither account is surer, so that a person has to decide.
func (o owedLine) corrected(read owedLine) (row []byte, ok bool) {
	switch {
	case !o.Def.isAnother(read.Def):
		return nil, true
	case o.Def.Kind != read.Def.Kind || o.Def.Pool != read.Def.Pool || o.Def.Delta == read.Def.Delta:
		return nil, false
	}
	return driver.EncodeRow(owedLine{read.above(o.Pair), read.Def}), true
}

func isUnreadable(err error) bool {
	_, ok := errors.AsType[*driver.UnreadableError](err)
	return ok
}

// blocks reports whether a line could not be read when that was last tried.
func (g *Guarded) blocks() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.blocked) > 0
}

func (g *Guarded) isBlocked(line string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.blocked[line]
}

// block notes that a line cannot be read, and has a survey made, so that what this node knows of
// it is owed.
func (g *Guarded) block(line string) {
	g.mu.Lock()
	known := g.blocked[line]
	if g.blocked = maps.Clone(g.blocked); g.blocked == nil {
		g.blocked = map[string]bool{}
	}
	g.blocked[line] = true
	g.mu.Unlock()
	if !known {
		g.surveyLater()
	}
}

// asBefore refuses a tag of the store that is another one than this node knows: its row then
// counts as unreadable.
func (g *Guarded) asBefore(now hapax.Tag) error {
	line := TagLine(now.Name)
	was, known := g.witness.def(line)
	if !known || !was.isAnother(defOf(now)) {
		return nil
	}
	g.block(line)
	return another(now.Name, was, defOf(now))
}

// wasSegment is asBefore for a tag of which nothing could be granted, since it is none with numbers.
func (g *Guarded) wasSegment(tag string) error {
	was, known := g.witness.def(TagLine(tag))
	if !known || was.Kind != "" {
		return nil
	}
	return another(tag, was, def{Kind: hapax.KindSnowflake})
}

// another is the error for a tag whose row is of another one.
func another(tag string, was, now def) error {
	return &driver.UnreadableError{Tag: tag, Cause: fmt.Errorf("row %q of table \"tags\" is of a %s, and the tag is a %s", tag, now.kind(), was.kind())}
}

// asBlocked is asBefore of the tag as it stands, for a change of it. It costs a round trip where a
// line is blocked.
func (g *Guarded) asBlocked(ctx context.Context, s store, tag string) error {
	if !g.isBlocked(TagLine(tag)) {
		return nil
	}
	t, err := s.Tag(ctx, tag)
	if err != nil {
		return err
	}
	return g.unreadable(TagLine(tag), g.asBefore(t))
}

// kind names the kind, the pool where there is one, and the numbers where they are not all.
func (d def) kind() string {
	switch {
	case d.Delta > 1:
		return fmt.Sprintf("segment with delta %d and remainder %d", d.Delta, d.Remainder)
	case d.Pool == "":
		return string(cmp.Or(d.Kind, hapax.KindSegment))
	}
	return fmt.Sprintf("%s of pool %q", d.Kind, d.Pool)
}

// unreadable takes the error of a call for a line, and tells what this node knows of one that
// cannot be read.
func (g *Guarded) unreadable(line string, err error) error {
	u, ok := errors.AsType[*driver.UnreadableError](err)
	if !ok {
		return err
	}
	g.block(line)
	if p, known := g.witness.Pair(line); known {
		return &driver.UnreadableError{Tag: u.Tag, Cause: fmt.Errorf("%w; this node knows that numbers below %d were used, under token %d", u.Cause, p.Mark, p.Token)}
	}
	return err
}

// mended returns the error for a tag that could not be read and can be now: it is compared before
// it is used.
func (g *Guarded) mended(tag string) error {
	if !g.isBlocked(TagLine(tag)) {
		return nil
	}
	g.surveyLater()
	return fmt.Errorf("%w: the row of tag %q could not be read before; it is compared with what was used, and then granted from", hapax.ErrStoreUnavailable, tag)
}

// Was returns the last known definition of a tag whose row cannot be read: from this node's witness, or
// from the row that is owed. What isAnother compares is for good.
func (g *Guarded) Was(ctx context.Context, tag string) (t hapax.Tag, known bool, err error) {
	if d, known := g.witness.def(TagLine(tag)); known {
		return d.was(tag), true, nil
	}
	owed, err := asServing(ctx, g, func(ctx context.Context, s store) (*owedLine, error) {
		owed, _, err := readOwedLine(ctx, s, TagLine(tag))
		return owed, err
	})
	if err != nil || owed == nil {
		return hapax.Tag{}, false, err
	}
	return owed.Def.was(tag), true, nil
}

// Was is [Guarded.Was] for a command, which has no witness.
func (o *oneShot) Was(ctx context.Context, tag string) (t hapax.Tag, known bool, err error) {
	owed, _, err := readOwedLine(ctx, o.store, TagLine(tag))
	if err != nil || owed == nil {
		return hapax.Tag{}, false, err
	}
	return owed.Def.was(tag), true, nil
}

// was returns the tag without its token and mark.
func (d def) was(name string) hapax.Tag {
	t := d.tag(name, Pair{})
	t.Kind = cmp.Or(t.Kind, hapax.KindSegment)
	return t
}

// judgeOwed judges a grant of a command, which has no witness.
func (o *oneShot) judgeOwed(ctx context.Context, tag string, a hapax.Allocation) error {
	line := TagLine(tag)
	owed, _, err := readOwedLine(ctx, o.store, line)
	if err != nil || owed == nil {
		return err
	}
	if now := defOf(a.Tag); owed.Def.isAnother(now) {
		return another(tag, owed.Def, now)
	}
	if from := (Pair{a.Tag.Token, a.Grant.Lo}); from.Less(owed.Pair) {
		return lacksLine(line, owed.Pair, from)
	}
	return nil
}
