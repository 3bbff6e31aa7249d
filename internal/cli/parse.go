package cli

import (
	"bufio"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
)

// maxLineBytes bounds a line of standard input.
const maxLineBytes = 1024

func parseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "parse ID...",
		Short: "Take numbers and codes apart",
		Long: `Parse takes snowflake numbers apart. With - in place of an ID it reads IDs from
standard input, one a line; a line without one is reported on standard error, with its
number, and the exit code is 2 at the end. The columns are the ID, its time, and the layout's
fields from the highest bit down.

With --tag it takes the codes of a tag apart instead: into the number and, where
numbers restart, its period. Whether a number was issued it does not say.
` + targetHelp,
		Example: `  hapax parse 2067301285494784000
  hapax parse INV-20261121-0004282 --tag invoices
  hapax parse --layout vesta-max-peak --json - < ids.txt`,
		Args: arguments(1, 1<<20),
	}
	layoutText := layoutFlag(cmd)
	tag := cmd.Flags().String("tag", "", "the tag whose codes are to be taken apart")
	asJSON := jsonFlag(cmd)
	where := addTarget(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("tag") {
			return parseCodes(cmd, where, *tag, args, *asJSON)
		}
		layout, err := hapax.ParseLayout(*layoutText)
		if err != nil {
			return err
		}
		header := []string{"ID", "AT"}
		for f := range layout.Fields() {
			header = append(header, strings.ToUpper(f.Name))
		}
		out := newOutput(cmd, *asJSON, header...)
		bad := 0
		for in, err := range readArgs(args, cmd.InOrStdin()) {
			if err == nil {
				err = printParsed(out, layout, in.text)
			}
			// An output that is closed is no matter of this line: each that follows would fail, too.
			if err != nil && in.line > 0 && exitCode(err) == exitUsage {
				bad++
				fmt.Fprintln(cmd.ErrOrStderr(), errorLine(fmt.Errorf("line %d: %s", in.line, hapax.Message(err))))
				continue
			}
			if err != nil {
				return errorAfter(out, err)
			}
		}
		if bad > 0 {
			return errorAfter(out, usagef("%d lines of standard input hold no number of this layout", bad))
		}
		return out.flush()
	}
	return cmd
}

// errorAfter flushes the results that came before an error, so that the reader
// sees both.
func errorAfter(out *output, err error) error {
	if flushErr := out.flush(); flushErr != nil {
		return flushErr
	}
	return err
}

func printParsed(out *output, layout hapax.Layout, text string) error {
	id, err := hapax.ParseID(text)
	if err != nil {
		return err
	}
	fields, err := layout.Parse(id)
	if err != nil {
		return err
	}
	at, err := layout.Time(id)
	if err != nil {
		return err
	}
	cells := []string{id.String(), at.Format(time.RFC3339Nano)}
	for _, f := range fields {
		cells = append(cells, strconv.FormatInt(f.Value, 10))
	}
	return out.add(service.Parsed{ID: id, Layout: service.LayoutName(layout), Time: at, Fields: fields}, cells...)
}

// argument is one text to parse.
type argument struct {
	text string
	line int // of standard input; 0: from the command line
}

// readArgs yields the arguments, and the lines of stdin where one is "-". Empty
// lines are skipped.
func readArgs(args []string, stdin io.Reader) iter.Seq2[argument, error] {
	return func(yield func(argument, error) bool) {
		line := 0
		for _, arg := range args {
			if arg != "-" {
				if !yield(argument{text: arg}, nil) {
					return
				}
				continue
			}
			lines := bufio.NewScanner(stdin)
			lines.Buffer(nil, maxLineBytes)
			for lines.Scan() {
				line++
				if text := strings.TrimSpace(lines.Text()); text != "" && !yield(argument{text, line}, nil) {
					return
				}
			}
			if err := lines.Err(); err != nil {
				yield(argument{}, fmt.Errorf("standard input: line %d: %w", line+1, err))
				return
			}
		}
	}
}

// layoutFlag adds --layout to a command.
func layoutFlag(cmd *cobra.Command) *string {
	const name = "layout"
	value := cmd.Flags().String(name, hapax.LayoutLeaf, "built-in layout or spec (see hapax layouts)")
	complete := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return hapax.Layouts(), cobra.ShellCompDirectiveNoFileComp
	}
	if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
		panic(err) // the flag was just defined
	}
	return value
}

func makeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "make --time T [FIELD=VALUE...]",
		Short: "Compose a number from its fields",
		Long: `Make composes the snowflake number with the given fields and prints it. Fields
that are not given are 0. It issues nothing: the number may have been issued
before, or may be issued later.`,
		Example: `  hapax make --time 2026-01-02T03:04:05Z --worker 7
  hapax make --layout vesta-max-peak --time 200000000 --worker 3 type=1 genMethod=2`,
		Args: arguments(0, 64),
	}
	layoutText := layoutFlag(cmd)
	at := cmd.Flags().String("time", "", "the time: RFC 3339, or the value of the time field (required)")
	worker := cmd.Flags().Int64("worker", 0, "the worker ID")
	sequence := cmd.Flags().Int64("sequence", 0, "the sequence number")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		layout, err := hapax.ParseLayout(*layoutText)
		if err != nil {
			return err
		}
		if *at == "" {
			return usagef("missing --time; usage: %s", cmd.UseLine())
		}
		tick, err := parseTime(layout, *at)
		if err != nil {
			return err
		}
		given := hapax.Fields{{Name: hapax.FieldTime, Value: tick}}
		if cmd.Flags().Changed("sequence") {
			given = append(given, hapax.Field{Name: hapax.FieldSequence, Value: *sequence})
		}
		if cmd.Flags().Changed("worker") {
			name := layout.WorkerField()
			if name == "" {
				return usagef("--worker does not fit: layout %s has no worker field", service.LayoutName(layout))
			}
			given = append(given, hapax.Field{Name: name, Value: *worker})
		}
		if given, err = addFields(given, args); err != nil {
			return err
		}
		id, err := layout.Compose(withZeros(layout, given))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), id)
		return err
	}
	return cmd
}

// parseTime reads a time as the value of the layout's time field.
func parseTime(layout hapax.Layout, text string) (int64, error) {
	if tick, err := strconv.ParseInt(text, 10, 64); err == nil {
		return tick, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0, &hapax.ValueError{
			Field: "time", Value: text,
			Allowed: "RFC 3339, such as 2026-01-02T03:04:05.678Z, or the value of the time field",
			Err:     hapax.ErrInvalidArgument,
		}
	}
	return layout.TickOf(at)
}

// addFields appends what FIELD=VALUE arguments give.
func addFields(given hapax.Fields, args []string) (hapax.Fields, error) {
	for _, arg := range args {
		name, text, ok := strings.Cut(arg, "=")
		value, err := strconv.ParseInt(text, 10, 64)
		if !ok || err != nil {
			return nil, &hapax.ValueError{Field: "field", Value: arg, Allowed: "FIELD=VALUE with an integer", Err: hapax.ErrInvalidArgument}
		}
		given = append(given, hapax.Field{Name: name, Value: value})
	}
	return given, nil
}

// withZeros adds the layout's fields that are not given.
func withZeros(layout hapax.Layout, given hapax.Fields) hapax.Fields {
	all := slices.Clone(given)
	for f := range layout.Fields() {
		if _, ok := given.Get(f.Name); !ok {
			all = append(all, hapax.Field{Name: f.Name})
		}
	}
	return all
}
