package sequences

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/signals"
)

// Margins: so many numbers, and those of so long at the rate that was seen.
const (
	leastMargin    = 1000
	leastGap       = 100_000
	stopSeconds    = 60
	gapTimesOfRate = 2
)

// margin returns how many numbers a tag begins above the highest, and why.
func (i *importing) margin(s *sequences.Source, given int64) (margin int64, why string) {
	least, seconds := int64(leastMargin), float64(stopSeconds)
	if i.switchOf() == sequences.Gap {
		least, seconds = leastGap, gapTimesOfRate*i.gap.Seconds()
	}
	switch more := s.Rate * seconds; {
	case given > 0:
		return given, "--margin"
	case more > float64(hapax.MaxMark):
		return hapax.MaxMark, "the rate is out of range"
	case int64(more) > least:
		return int64(more), fmt.Sprintf("%.3g numbers a second for %v", s.Rate, time.Duration(seconds)*time.Second)
	}
	return least, "the least"
}

// A wrongError tells what stands in the way of a source: no argument is to blame.
type wrongError struct{ text string }

func (e *wrongError) Error() string { return e.text }
func (e *wrongError) Unwrap() error { return hapax.ErrInvalidArgument }

func (i *importing) switchOf() sequences.Switch { return sequences.Switch(i.how) }

// define returns the tag of a source, and the margin in words.
func (i *importing) define(s *sequences.Source, above, given int64) (hapax.Tag, string, error) {
	def := hapax.Tag{Name: s.Tag, Kind: hapax.KindSegment}
	if len(s.Wrong) > 0 {
		return def, "", &wrongError{strings.Join(s.Wrong, "; ")}
	}
	err := hapax.ValidateName("tag", s.Tag)
	if err == nil {
		err = define.CheckForm("tag", s.Tag)
	}
	if err != nil {
		return def, "", err
	}
	if s.Closed != nil && s.Closed.How == sequences.Gap && i.switchOf() == sequences.Parity {
		return def, "", &wrongError{"it ends below its tag (--switch gap): shut it with --switch stop, or open it with --undo first"}
	}
	margin, why := i.margin(s, given)
	if above > hapax.MaxMark-margin-3 {
		return def, "", fmt.Errorf("%w: no numbers are left above %d and a margin of %d (%s)", hapax.ErrInvalidArgument, above, margin, why)
	}
	def.Mark = max(1, above+margin+1)
	if i.switchOf() == sequences.Parity {
		def.Mark += def.Mark % 2
		def.Delta = 2
	}
	for _, c := range s.Feeds {
		if def.Mark > c.Last {
			return def, "", fmt.Errorf("%w: the tag would begin at %d, and %s takes numbers up to %d: make it a bigint first, or give a smaller --margin", hapax.ErrInvalidArgument, def.Mark, c, c.Last)
		}
	}
	def.Start = def.Mark
	return def, fmt.Sprintf("a margin of %d: %s", margin, why), nil
}

// planned is the definition of a source's tag beside the native tag, if there is one, and
// whether that one has to be made anew because the source has gone past it.
func (i *importing) planned(ctx context.Context, to moves.Target, d *database, s *sequences.Source, given int64) (def hapax.Tag, anew bool, err error) {
	def, _, err = i.define(s, s.Highest, given)
	if err != nil {
		return def, false, err
	}
	have, err := to.Tag(ctx, s.Tag)
	if err == nil && !have.Deleted {
		err = d.notOurs(have)
	}
	switch {
	case errors.Is(err, hapax.ErrTagNotFound):
		return def, false, nil
	case err != nil:
		return def, false, err
	case i.switchOf() == sequences.Parity && (have.Delta != def.Delta || have.Remainder != def.Remainder): // also a tombstone's
		return def, false, &wrongError{fmt.Sprintf("the native tag %q issues other numbers than every even one (delta %d, remainder %d), which cannot change: choose --switch stop or gap, or --prefix for a tag of its own", s.Tag, have.Delta, have.Remainder)}
	case have.Kind != hapax.KindSegment:
		return def, false, nil // moves.Plan says so
	case have.Deleted:
		def.Delta, def.Remainder = have.Delta, have.Remainder
		def.Mark = max(def.Mark, have.Mark)
		def.Start = def.Mark
		return def, false, nil
	case s.Closed != nil || have.Start > s.Position: // this import has made it, before it was cut off
		mark := have.Mark
		for _, c := range s.Feeds {
			mark = max(mark, min(c.Max, hapax.MaxMark-2)+1)
		}
		def.Delta, def.Remainder = have.Delta, have.Remainder
		if s.Closed == nil && mark > have.Mark && have.Mark == have.Start { // the source has gone on since it was asked
			return def, true, nil
		}
		def.Start, def.Mark = have.Start, mark
		return def, false, nil
	case have.Mark == have.Start:
		def.Delta, def.Remainder = have.Delta, have.Remainder
		return def, true, nil
	}
	return def, false, fmt.Errorf("%w: the native tag %q has issued numbers from %d on, and the source is at %d: compare both with hapax audit, delete the tag, and repeat", hapax.ErrInvalidArgument, s.Tag, have.Start, s.Position)
}

// YAML implements mount.Imported: it is the plan, as a script.
func (m *imported) YAML(string) string {
	var b, shut, floors, left strings.Builder
	b.WriteString(`#!/bin/sh
# Moves sources of numbers to hapax tags, by the switch ` + m.how + `. Read it, then run it: hapax's own
# flags, such as --server URL, are its arguments. It can be run again. Or give the same command
# --apply, which does the same and goes on where it was cut off; --dry-run shows what it would do.
` + howTo[m.switchOf()] + `set -eu
`)
	b.WriteString(sequences.ForStoreHelp)
	if slices.ContainsFunc(m.all, func(d *database) bool { return strings.Contains(d.speaks.Script("", []string{""}), mysqlHelper) }) {
		b.WriteString(mysqlHelp)
	}
	tags := 0
	for _, d := range m.all {
		fmt.Fprintf(&b, ": \"${%s:?the URL of %s}\"\n", d.variable, comment(sequences.Shown(d.given)))
		for _, s := range d.sources {
			text, steps, err := m.one(d, s)
			if err != nil {
				fmt.Fprintf(&left, "#   %s (%s %s): %s\n", comment(s.Tag), s.Kind, comment(strings.Join(s.Names, ", ")), comment(hapax.Message(err)))
				continue
			}
			tags++
			b.WriteString(text)
			shut.WriteString(steps)
			all, why := d.floorsOf(s)
			if flags := floorArguments(all); flags != "" {
				fmt.Fprintf(&floors, "hapax tags set %s%s \"$@\"\n", signals.Word(s.Tag), flags)
			} else if why != "" {
				fmt.Fprintf(&floors, "#   %s: %s\n", comment(s.Tag), comment(why))
			}
		}
		for _, other := range d.others {
			fmt.Fprintf(&left, "#   %s\n", comment(other))
		}
	}
	if tags == 0 {
		b.WriteString("\n# Nothing is to be moved.\n")
	} else {
		b.WriteString("\n# The tags are there, and deleted. From here on each source is shut, and its tag opened.\n" + shut.String())
	}
	if floors.Len() > 0 {
		b.WriteString("\n# The last witness of a store that is lost: the servers need the same variables or files, best\n# with an account that may only read.\n" + floors.String())
	}
	if left.Len() > 0 {
		b.WriteString("\n# Not moved:\n" + left.String())
	}
	return b.String()
}

// mysqlHelper is the function by which a script speaks to MySQL.
const mysqlHelper = "hapax_mysql"

const mysqlHelp = mysqlHelper + `() { # URL: a client that reads statements
	url=${1#*://}; user=${url%%@*}; url=${url#*@}; host=${url%%/*}; name=${url#*/}; name=${name%%\?*}
	case $user in *:*) MYSQL_PWD=${user#*:}; export MYSQL_PWD; user=${user%%:*} ;; esac
	case $host in *:*) port=${host##*:}; host=${host%:*} ;; *) port=3306 ;; esac
	mysql -u "$user" -h "$host" -P "$port" "$name"
}
`

// howTo tells what an operator does around a plan.
var howTo = map[sequences.Switch]string{
	sequences.Stop: `#   1. Stop all writers.  2. Run this.  3. Start the writers that take their numbers from hapax.
`,
	sequences.Gap: `#   1. Run this; the writers go on.  2. Roll out the writers that take their numbers from hapax.
#   3. Run the command with --switch stop --apply.  What is not over by then fails at the gap's end.
`,
	sequences.Parity: `#   1. Run this; the writers go on.  2. Roll out the writers that take their numbers from hapax.
#   3. Run the command with --switch stop --apply.  The tag keeps its delta.
`,
}

// one returns what a plan says of a source, and what shuts it.
func (m *imported) one(d *database, s *sequences.Source) (text, steps string, err error) {
	var b strings.Builder
	fmt.Fprintf(&b, "\n# %s: %s %s", comment(s.Tag), s.Kind, comment(strings.Join(s.Names, ", ")))
	for k, c := range s.Feeds {
		sep := ", feeds "
		if k > 0 {
			sep = ", "
		}
		fmt.Fprintf(&b, "%s%s (%s)", sep, comment(c.String()), comment(c.Type))
	}
	b.WriteByte('\n')
	if s.Closed != nil && (s.Closed.How == sequences.Stop || s.Closed.How == m.switchOf()) {
		fmt.Fprintf(&b, "#   shut at %d (%s), for the tag %s\n", s.Closed.At, s.Closed.How, comment(s.Closed.Tag))
		return b.String(), "", nil
	}
	def, margin, err := m.define(s, s.Highest, 0)
	if err != nil {
		return "", "", err
	}
	statements, err := d.speaks.Steps(s, m.switchOf(), def.Start)
	if err != nil {
		return "", "", err
	}
	fmt.Fprintf(&b, "#   highest: %d, by %s; first: %d, by %s\n", s.Highest, comment(s.Because), def.Start, margin)
	if last := s.Last(); last != math.MaxInt64 {
		fmt.Fprintf(&b, "#   its columns take numbers up to %d, of which %d are left; %s\n", last, last-s.Highest, m.ends(s))
		for _, c := range s.Feeds {
			if c.Last < math.MaxInt64 {
				fmt.Fprintf(&b, "#   to widen it, and each column that refers to it: %s\n", comment(c.Widen))
			}
		}
	}
	for _, note := range s.Notes {
		fmt.Fprintf(&b, "#   note: %s\n", comment(note))
	}
	steps = d.speaks.Script(d.variable, statements)
	if s.Closed != nil {
		return b.String(), steps, nil
	}
	name := signals.Word(s.Tag)
	create := fmt.Sprintf("hapax tags create %s --start %d %s", name, def.Start, moves.OpenFlag)
	set := fmt.Sprintf("hapax tags set %s --floor %d \"$@\"", name, def.Start)
	if def.Delta > 1 { // a tag that is there may issue the source's numbers, too
		create += fmt.Sprintf(" --delta %d --remainder %d", def.Delta, def.Remainder)
		set = fmt.Sprintf("{ hapax tags show %s --json \"$@\" | grep '\"delta\":%d[,}]' | grep -qv '\"remainder\":' && %s; } || exit 1", name, def.Delta, set)
	}
	// A tag that is deleted issues nothing, and keeps everybody from its name.
	fmt.Fprintf(&b, "if %s %s \"$@\"; then hapax tags delete %s \"$@\"; else %s; fi\n", create, moves.HeldFlag, name, set)
	return b.String(), steps + fmt.Sprintf("%s \"$@\" || %s\n", create, set), nil
}

// ends tells when the columns of a source are full.
func (m *imported) ends(s *sequences.Source) string {
	switch ends := s.Ends(m.now); {
	case s.Rate <= 0:
		return fmt.Sprintf("none was issued in %v: --sample 10m measures for longer, and tells when they end", m.sample)
	case ends.IsZero():
		return fmt.Sprintf("at %.3g a second they last for more than 30 years", s.Rate)
	default:
		return fmt.Sprintf("at %.3g a second they are full on %s", s.Rate, ends.UTC().Format(time.DateOnly))
	}
}

// NativeYAML implements mount.Movable: the tags as a configuration defines them.
func (m *imported) NativeYAML(context.Context) (string, error) {
	var b strings.Builder
	b.WriteString("tags:\n")
	for _, d := range m.all {
		for _, s := range d.sources {
			def, _, err := m.define(s, s.Highest, 0)
			if err != nil {
				fmt.Fprintf(&b, "  # %s: %s\n", comment(s.Tag), comment(hapax.Message(err)))
				continue
			}
			fmt.Fprintf(&b, "  %s:\n    kind: segment\n    start: %d\n", moves.Quote(s.Tag), def.Start)
			if def.Delta > 1 {
				fmt.Fprintf(&b, "    delta: %d\n    remainder: %d\n", def.Delta, def.Remainder)
			}
			all, why := d.floorsOf(s)
			if why != "" {
				fmt.Fprintf(&b, "    # no floor_from: %s\n", comment(why))
			}
			for k, f := range all {
				if k == 0 {
					b.WriteString("    floor_from:\n")
				}
				fmt.Fprintf(&b, "      - {url: %s, table: %s, column: %s}\n", moves.Quote(f.URL), moves.Quote(f.Table), moves.Quote(f.Column))
			}
		}
	}
	return b.String(), nil
}

// comment returns a text as it can stand in a comment of one line.
func comment(s string) string { return strings.Trim(moves.Quote(s), `"`) }
