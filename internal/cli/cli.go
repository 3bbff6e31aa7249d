// Package cli is the hapax command: one file a subcommand, over the server's
// configuration and the library.
//
// Results go to standard output, in a form for people where that is a terminal
// and in columns separated by tabs where it is not; --json prints one JSON value
// a line. An error is one line on standard error, "hapax: …", and nothing else.
// The exit code is 0 for success, 1 for a failure, and 2 where the command line
// or the configuration is wrong, so that trying again cannot help.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/build"
	"github.com/hapax-id/hapax/internal/server"
	"github.com/hapax-id/hapax/store/driver"
)

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// Streams are the command's standard streams. Where Out or Err is the *os.File
// of a terminal, what is written there is laid out for people.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Main runs the command and returns its exit code.
func Main(ctx context.Context, args []string, streams Streams) int {
	root := newRoot(streams, nil)
	args = spareNegativeIDs(args)
	if err := unknownCommand(root, args); err != nil {
		return Exit(err, streams.Err)
	}
	root.SetArgs(args)
	return Exit(root.ExecuteContext(ctx), streams.Err)
}

// Serve runs the command serve with strategies and plugins of the caller's.
func Serve(ctx context.Context, args []string, streams Streams, setup server.Setup) error {
	root := newRoot(streams, setup)
	root.SetArgs(append([]string{"serve"}, args...))
	return root.ExecuteContext(ctx)
}

// Exit writes why a command ended, unless it was carried out, and returns its exit
// code.
func Exit(err error, to io.Writer) int {
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[*statusError](err); ok {
		if e.err != nil {
			fmt.Fprintln(to, errorLine(e.err))
		}
		return e.status
	}
	fmt.Fprintln(to, errorLine(err))
	return exitCode(err)
}

// Command returns the whole command, for the manual pages and completions that are made
// from it.
func Command() *cobra.Command {
	return newRoot(Streams{Out: io.Discard, Err: io.Discard}, nil)
}

func newRoot(streams Streams, setup server.Setup) *cobra.Command {
	root := &cobra.Command{
		Use:   "hapax",
		Short: "Issue unique 64-bit numbers",
		Long: `hapax issues unique 64-bit numbers: order numbers, user IDs, event IDs.

  hapax serve            run a server, by default on 127.0.0.1:8080
  hapax next orders      issue a number of the tag "orders"
  hapax parse ID         show the time, worker and sequence in a number

Exit codes: 0 success, 1 failure, 2 wrong command line or configuration.`,
		Version:       build.Read().Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	root.SetVersionTemplate("hapax {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
			return badFlag(e)
		}
		if e, ok := errors.AsType[*pflag.NotExistError](err); ok && e.GetSpecifiedShortnames() == "" {
			var names []string
			cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
			if meant := driver.Nearest(e.GetSpecifiedName(), names); meant != "" && driver.Distance(e.GetSpecifiedName(), meant) <= cmd.Root().SuggestionsMinimumDistance {
				err = fmt.Errorf("%w%s", err, didYouMean([]string{"--" + meant}))
			}
		}
		if e, ok := errors.AsType[*pflag.NotExistError](err); ok && negativeID.MatchString("-"+e.GetSpecifiedShortnames()) {
			return &hapax.ValueError{Field: "argument", Value: "-" + e.GetSpecifiedShortnames(), Allowed: "no number below 0; usage: " + cmd.UseLine(), Err: hapax.ErrInvalidArgument}
		}
		return usagef("%v; see %s --help", err, cmd.CommandPath())
	})
	group(root,
		serveCommand(setup),
		nextCommand(),
		parseCommand(),
		makeCommand(),
		layoutsCommand(),
		planCommand(),
		tagsCommand(),
		poolsCommand(),
		storeCommand(),
		workersCommand(),
		workerCommand(),
		testserverCommand(),
		pluginsCommand(),
		importCommand(),
		traceCommand(),
		auditCommand(),
		statusCommand(),
		healthCommand(),
		nodesCommand(),
		doctorCommand(),
		adoptCommand(),
		tokenCommand(),
		versionCommand(),
	)
	root.AddCommand(systemCommands()...)
	refuseUnknown(root)
	return root
}

// refuseUnknown makes errors of arguments that cobra's own commands answer with their help: a
// shell or a command that there is not.
func refuseUnknown(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			group(cmd)
		case "help":
			cmd.Run = nil
			cmd.RunE = func(_ *cobra.Command, args []string) error {
				about, rest, err := root.Find(args)
				if err != nil || len(rest) > 0 {
					return usagef("there is no command %q; see hapax --help", strings.Join(args, " "))
				}
				return about.Help()
			}
		}
	}
}

// group makes cmd one that does nothing without one of its subcommands.
func group(cmd *cobra.Command, commands ...*cobra.Command) {
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		meant := cmd.SuggestionsFor(args[0])
		path := strings.TrimPrefix(cmd.CommandPath()+" "+args[0], "hapax ")
		has := ""
		if cmd.HasParent() { // of all commands the help is a better list
			has = cmd.CommandPath() + " has " + strings.Join(namesBelow(cmd), ", ") + "; "
		}
		return usagef("there is no command %q%s; %ssee %s --help", path, didYouMean(meant), has, cmd.CommandPath())
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(commands...)
}

// namesBelow returns the names of the subcommands that help lists.
func namesBelow(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// unknownCommand refuses a subcommand that there is not, also where --help follows: cobra
// answers that with the help of the parent command.
func unknownCommand(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err != nil || !cmd.HasSubCommands() || cmd.Args == nil {
		return nil //nolint:nilerr // Execute tells
	}
	// A shell that completes asks with words that are no commands yet.
	if len(rest) == 0 || strings.HasPrefix(rest[0], "-") || strings.HasPrefix(rest[0], cobra.ShellCompRequestCmd) {
		return nil
	}
	return cmd.Args(cmd, rest)
}

// usageError is a command line that cannot be carried out.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

const wantInteger = "an integer of 64 bits, without point or exponent"

// badFlag tells of a flag that its type does not take, in the words of all errors.
func badFlag(e *pflag.InvalidValueError) error {
	flag := e.GetFlag()
	name := "--" + flag.Name
	if flag.Shorthand != "" {
		name = "-" + flag.Shorthand
	}
	allowed := map[string]string{
		"int": wantInteger, "int64": wantInteger, "float64": "a number, such as 1000 or 0.5", "bool": "true or false",
		"duration": "a duration with its unit, such as 10s",
	}[flag.Value.Type()]
	if allowed == "" {
		allowed = "a value of the type " + flag.Value.Type()
	}
	return &hapax.ValueError{Field: name, Value: e.GetValue(), Allowed: allowed, Err: hapax.ErrInvalidArgument}
}

// badInput are the sentinels of errors that the command line is to blame for.
var badInput = []error{
	hapax.ErrInvalidArgument, hapax.ErrInvalidTag, hapax.ErrInvalidLayout, hapax.ErrInvalidID, hapax.ErrFieldRange,
	hapax.ErrLayoutMismatch,
}

func exitCode(err error) int {
	_, usage := errors.AsType[*usageError](err)
	if usage || slices.ContainsFunc(badInput, func(target error) bool { return errors.Is(err, target) }) {
		return exitUsage
	}
	return exitFailure
}

// errorLine returns the error as one line.
func errorLine(err error) string { return "hapax: " + hapax.Message(err) }

func didYouMean(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(" (did you mean %s?)", strings.Join(names, " or "))
}

// arguments returns a check of the number of arguments, whose error tells how
// the command is used.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usagef("missing argument; usage: %s", cmd.UseLine())
		case len(args) > most:
			cmd.SuggestionsMinimumDistance = 2
			return usagef("unexpected argument %q%s; usage: %s", args[most], didYouMean(cmd.SuggestionsFor(args[most])), cmd.UseLine())
		}
		return nil
	}
}

// valued are the flags of parse and trace that an argument follows.
var valued = []string{"--layout", "--tag", "--server", "--data", "--token-file", "--ca-file", "--cert-file"}

var negativeID = regexp.MustCompile(`^-[0-9]+$`)

// spareNegativeIDs keeps IDs with a set sign bit, as some layouts have them,
// from being taken for flags.
func spareNegativeIDs(args []string) []string {
	if len(args) == 0 || args[0] != "parse" && args[0] != "trace" || slices.Contains(args, "--") || !slices.ContainsFunc(args, negativeID.MatchString) {
		return args
	}
	// Capped, so that what is appended is not written into the caller's arguments.
	spared := args[:1:1]
	var ids []string
	for i := 1; i < len(args); i++ {
		switch arg := args[i]; {
		case slices.Contains(valued, arg) && i+1 < len(args):
			i++
			spared = append(spared, arg, args[i])
		case strings.HasPrefix(arg, "-") && arg != "-" && !negativeID.MatchString(arg):
			spared = append(spared, arg)
		default:
			ids = append(ids, arg)
		}
	}
	return append(append(spared, "--"), ids...)
}

// isTerminal reports whether what is written to w is seen by a person.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
