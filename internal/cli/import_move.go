package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/audit"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/internal/signals"
)

// moveHelp tells what all moves have in common.
const moveHelp = `
With --dry-run it shows what a move to native tags would do, and with --apply it does
it: each row becomes a segment tag whose mark lies above every number that the old
system can have issued, by a margin of ten of the largest steps that it takes, or
--margin.%s It can be repeated. It watches the old system for --watch, and refuses while
it sees old nodes issuing, and where there is nothing to move. The block of
configuration to go on with is that of --native.

Passwords are not printed. A server takes one from the file that password_file names,
which --write-password writes, or from this variable, from which the command takes it,
too, where neither FILE nor URL has one: %s.
`

// closesHelp tells what moves that close the old rows do beside that.
const closesHelp = ` The row is closed, so that an old node that is started again gets an error
and issues nothing. --undo is the way back: it deletes the native tags, and opens the
rows again above all that was issued natively; --apply prints that command.`

// moveFlags are what the moves of tables have in common.
type moveFlags struct {
	dryRun, apply, undo, native, ignore, verify bool

	margin        int64
	watch         time.Duration
	writePassword string
	asJSON        *bool
	where         *targetFlags
}

func addMove(cmd *cobra.Command, i *mount.Import) *moveFlags {
	f := &moveFlags{}
	flags := cmd.Flags()
	dryRun, apply := "only show each tag's mark before and after a move to native tags", "move: create the native tags, or raise their marks"
	if i.Closes {
		dryRun, apply = dryRun+", and how its row is closed; with --undo the way back", apply+", and close the old rows"
		flags.BoolVar(&f.undo, "undo", false, "move back: delete the native tags, and open the old rows above them")
	}
	flags.BoolVar(&f.dryRun, "dry-run", false, dryRun)
	flags.BoolVar(&f.apply, "apply", false, apply)
	flags.BoolVar(&f.native, "native", false, "print the configuration that goes on with native tags")
	flags.BoolVar(&f.ignore, "ignore-living", false, "go on although old nodes are seen; choose a margin above all that they can issue meanwhile")
	flags.DurationVar(&f.watch, "watch", 10*time.Second, "how long the tables are watched for old nodes")
	if i.Verifies {
		flags.BoolVar(&f.verify, "verify", false, "compare both sides after a move, and change nothing")
		flags.Int64Var(&f.margin, "margin", 0, "how far above the highest number a tag begins (default by the rate: the plan says it)")
	} else {
		flags.Int64Var(&f.margin, "margin", 0, "how far above a row's max_id the native mark is set (default ten of the largest steps that the old system takes)")
		flags.StringVar(&f.writePassword, "write-password", "", "file to write the passwords to, readable by its owner only, for password_file")
	}
	f.asJSON = jsonFlag(cmd)
	f.where = addTarget(cmd)
	return f
}

// check refuses flags that exclude each other.
func (f *moveFlags) check() error {
	n := 0
	for _, given := range []bool{f.apply, f.undo, f.native, f.verify} {
		if given {
			n++
		}
	}
	switch {
	case n > 1, (f.native || f.verify) && f.dryRun:
		return usagef("of --apply, --native, --verify and the way back only one can be given, and --dry-run is for the first and the last")
	case f.margin < 0:
		return &hapax.ValueError{Field: "--margin", Value: f.margin, Allowed: "0 or more", Err: hapax.ErrInvalidArgument}
	case f.watch <= 0:
		return &hapax.ValueError{Field: "--watch", Value: f.watch, Allowed: "more than 0s, such as 10s", Err: hapax.ErrInvalidArgument}
	}
	return nil
}

// passwordFile writes passwords where --write-password says, and returns the file's
// absolute name; empty if there is nothing to write.
func (f *moveFlags) passwordFile(text string) (string, error) {
	if f.writePassword == "" || text == "" {
		return "", nil
	}
	path, err := filepath.Abs(f.writePassword)
	if err != nil {
		return "", err
	}
	// Never one that is there: another server may read it.
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", fmt.Errorf("--write-password: %w", err)
	}
	_, err = file.WriteString(text)
	return path, errors.Join(err, file.Close())
}

// with opens the native store, calls do, and closes it. A long table takes as long as
// it takes.
func (f *moveFlags) with(cmd *cobra.Command, do func(context.Context, target) error) error {
	ctx := cmd.Context()
	on := func(t target, err error) error {
		if err != nil {
			return err
		}
		return errors.Join(t.explain(do(ctx, t)), t.Close(ctx))
	}
	if !f.dryRun {
		return on(f.where.open(ctx, creates))
	}
	err := on(f.where.open(ctx, changes))
	if errors.Is(err, server.ErrNoStore) { // it may be the first to come here, and makes none
		return on(f.where.openEmpty(ctx))
	}
	return err
}

// bar returns what shows the progress of a phase, and what ends that.
func bar(cmd *cobra.Command, phase string) (progress func(done, total int), end func()) {
	b, began := newProgressBar(cmd.ErrOrStderr()), time.Now()
	return func(done, total int) {
		b.update(audit.Progress{Phase: phase, Done: int64(done), Total: int64(total), Elapsed: time.Since(began)})
	}, b.clear
}

// moveJSON is a move as --json prints it.
type moveJSON struct {
	Tag       string   `json:"tag,omitempty"`
	Worker    *int64   `json:"worker,omitempty"`
	Before    hapax.ID `json:"before,omitzero"`
	After     hapax.ID `json:"after,omitzero"`
	Delta     int64    `json:"delta,omitempty"` // 0: 1
	Remainder int64    `json:"remainder,omitempty"`
	Closes    string   `json:"closes,omitempty"` // how the row is closed
	Above     string   `json:"above,omitempty"`  // the time that a worker ID goes on above
	Problem   string   `json:"problem,omitempty"`
}

var moveHeader = []string{"TAG", "MARK BEFORE", "MARK AFTER", "NOTE"}

// printMoves shows moves of tags, or the way back, and returns how many cannot be made.
func printMoves(out *output, all []moves.Move, undo bool) (impossible int, err error) {
	for _, m := range all {
		j := moveJSON{Tag: m.Tag.Name, Before: hapax.ID(m.Before), After: hapax.ID(m.After)}
		if m.Tag.Delta > 1 {
			j.Delta, j.Remainder = m.Tag.Delta, m.Tag.Remainder
		}
		var note string
		switch {
		case m.Reason != nil:
			impossible++
			j.Problem = m.Reason.Error()
			note = errorLine(m.Reason)
		case undo:
			note = "row opened above it"
		case !m.Changes():
			note = "nothing to do"
		case m.Before == 0:
			note = "new"
		default:
			note = "raised"
		}
		if m.Reason == nil && !undo && m.Closes != "" {
			j.Closes = m.Closes
			note += "; row closed: " + m.Closes
		}
		if j.Delta > 0 && m.Reason == nil {
			note += fmt.Sprintf(" (delta %d, remainder %d)", j.Delta, j.Remainder)
		}
		if err := out.add(j, dash(m.Tag.Name), mark(m.Before), mark(m.After), dash(note)); err != nil {
			return impossible, err
		}
	}
	return impossible, nil
}

func mark(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

// closing tells what was done, and of the way back.
func (f *moveFlags) closing(cmd *cobra.Command, args []string, all mount.Moves, impossible int) error {
	errs := cmd.ErrOrStderr()
	for _, note := range all.Notes {
		fmt.Fprintln(errs, "hapax: note:", note)
	}
	if all.Closes != "" {
		fmt.Fprintln(errs, "hapax:", f.closes(), all.Closes)
	}
	switch {
	case f.dryRun:
		fmt.Fprintln(errs, "hapax: nothing was changed; without --dry-run,", f.verb(), "does it")
	case f.apply && (all.Closes != "" || slices.ContainsFunc(all.Tags, func(m moves.Move) bool { return m.Reason == nil && m.Closes != "" })):
		fmt.Fprintln(errs, "hapax: moved; the way back, which takes what was issued natively into account:", f.wayBack(cmd, args))
	case f.undo && len(all.Tags) == 0:
		fmt.Fprintln(errs, "hapax: no row is closed")
	}
	if impossible > 0 {
		return fmt.Errorf("%d of the rows cannot be moved, for the reasons given; correct them and repeat", impossible)
	}
	return nil
}

// closes tells what becomes of doors beside rows.
func (f *moveFlags) closes() string {
	switch {
	case f.undo && f.dryRun:
		return "would be opened, if it is closed:"
	case f.undo:
		return "open again:"
	case f.dryRun:
		return "would be closed:"
	}
	return "closed:"
}

func (f *moveFlags) verb() string {
	if f.undo {
		return "--undo"
	}
	return "--apply"
}

// wayBack is the command line that undoes a move: the same with --undo, and without
// passwords.
func (f *moveFlags) wayBack(cmd *cobra.Command, args []string) string {
	words := []string{cmd.CommandPath()}
	for _, arg := range args {
		words = append(words, signals.Word(withoutPassword(arg)))
	}
	words = append(words, "--undo")
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		// No flag of the way there, and no secret.
		switch flag.Name {
		case "apply", "json", "margin", "watch", "ignore-living", "token":
			return
		}
		values := []string{flag.Value.String()}
		if given, ok := f.where.settings.given[flag.Name]; ok {
			values = []string{given}
		}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			words = append(words, "--"+flag.Name, signals.Word(withoutPassword(value)))
		}
	})
	return strings.Join(words, " ")
}

// withoutPassword takes the password out of a URL.
func withoutPassword(value string) string {
	u, err := url.Parse(value)
	if err != nil || u.User == nil {
		return value
	}
	u.User = url.User(u.User.Username())
	return u.String()
}

// verdictJSON is what was found of one tag, as --json prints it.
type verdictJSON struct {
	Tag     string   `json:"tag"`
	Says    string   `json:"source"`
	Problem []string `json:"problem,omitempty"`
}

// compare shows the state of both sides after a move.
func (f *moveFlags) compare(ctx context.Context, cmd *cobra.Command, v mount.Verifiable, t target) error {
	all, err := v.Verify(ctx, t)
	if err != nil {
		return err
	}
	out, wrong := newOutput(cmd, *f.asJSON, "TAG", "SOURCE", "VERDICT"), 0
	for _, one := range all {
		verdict := "as it was left"
		if len(one.Wrong) > 0 {
			wrong++
			verdict = strings.Join(one.Wrong, "; ")
		}
		if err := out.add(verdictJSON{one.Tag, one.Says, one.Wrong}, one.Tag, one.Says, verdict); err != nil {
			return err
		}
	}
	if wrong > 0 {
		err = fmt.Errorf("%d of %d are not as they were left", wrong, len(all))
	}
	return errors.Join(out.flush(), err)
}

// move moves tags and worker IDs, or back, and shows them.
func (f *moveFlags) move(ctx context.Context, cmd *cobra.Command, args []string, m mount.Movable, t target) error {
	all, err := m.Move(ctx, t, mount.MoveOptions{
		Apply: !f.dryRun, Undo: f.undo, Margin: f.margin, Watch: f.watch, IgnoreLiving: f.ignore,
		Settings: func(system string) (mount.Settings, error) {
			config, err := f.where.settings.load()
			return config.Mounts[system], err
		},
		Bar: func(phase string) (func(done, total int), func()) { return bar(cmd, phase) },
	})
	if err != nil {
		return err
	}
	out := newOutput(cmd, *f.asJSON, moveHeader...)
	impossible, err := printMoves(out, all.Tags, f.undo)
	if err != nil {
		return err
	}
	for _, w := range all.Workers {
		before, note := "-", "nothing to do"
		if !w.Before.IsZero() {
			before = w.Before.UTC().Format(time.RFC3339)
		}
		if w.Changes {
			note = "above node " + w.Node
		}
		above := w.Above.UTC().Format(time.RFC3339)
		if err := out.add(moveJSON{Worker: &w.Worker, Above: above}, fmt.Sprintf("worker %s/%d", w.Pool, w.Worker), before, above, note); err != nil {
			return err
		}
	}
	return errors.Join(out.flush(), f.closing(cmd, args, all, impossible))
}
