package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/store/driver"
)

// tagsPage is how many tags are asked for at a time.
const tagsPage = 500

var tagHeader = []string{"TAG", "KIND", "NEXT", "STEP", "MIN", "MAX", "POOL", "CODE", "STATE"}

// tagCells returns a tag as a row under tagHeader.
func tagCells(t api.Tag) []string {
	number := func(v int64) string {
		if t.Kind != hapax.KindSegment {
			return "-"
		}
		return strconv.FormatInt(v, 10)
	}
	mark := "-"
	if t.Mark != nil {
		mark = strconv.FormatInt(int64(*t.Mark), 10)
	}
	state := "live"
	if t.Deleted {
		state = "deleted"
	}
	return []string{t.Name, cmp.Or(t.Strategy, string(t.Kind)), mark, number(t.Step), number(t.MinStep), number(t.MaxStep), dash(t.Pool), dash(t.Code), state}
}

func tagsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tags",
		Short: "List, show, create, change and delete tags",
		Long: `Tags administers the names that numbers are issued for. NEXT is the high-water
mark: the next segment that is taken from the store starts there.
` + targetHelp,
	}
	group(cmd, tagsListCommand(), tagsShowCommand(), tagsCreateCommand(), tagsSetCommand(), tagsDeleteCommand())
	return cmd
}

func tagsListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the tags, by name",
		Args:  arguments(0, 0),
	}
	all := cmd.Flags().Bool("all", false, "list deleted tags, too")
	asJSON := jsonFlag(cmd)
	where := addTarget(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return where.with(cmd, reads, func(ctx context.Context, t target) error {
			out := newOutput(cmd, *asJSON, tagHeader...)
			for after := ""; ; {
				page, err := t.Tags(ctx, after, tagsPage)
				if err != nil {
					return errorAfter(out, err)
				}
				for _, tag := range page {
					// Deleted ones move the cursor, too: they count in the length of the page.
					after = tag.Name
					if tag.Deleted && !*all {
						continue
					}
					shown := define.Shown(tag)
					if err := out.add(shown, tagCells(shown)...); err != nil {
						return err
					}
				}
				if len(page) < tagsPage {
					return out.flush()
				}
			}
		})
	}
	return cmd
}

// oneTag returns a subcommand on a named tag, which prints the tag that results.
func oneTag(u use, name, short string, prepare func(*pflag.FlagSet) func(context.Context, target, string) (hapax.Tag, error)) *cobra.Command {
	cmd := &cobra.Command{Use: name + " TAG", Short: short, Args: arguments(1, 1)}
	do := prepare(cmd.Flags())
	if cmd.Flags().Lookup("kind") != nil {
		completeFlag(cmd, "kind", string(hapax.KindSegment), string(hapax.KindSnowflake))
	}
	asJSON := jsonFlag(cmd)
	where := addTarget(cmd)
	completeFirst(cmd, where, tagNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := hapax.ValidateName("tag", args[0]); err != nil {
			return err
		}
		return where.with(cmd, u, func(ctx context.Context, t target) error {
			tag, err := do(ctx, t, args[0])
			if err != nil {
				return err
			}
			out, shown := newOutput(cmd, *asJSON, tagHeader...), define.Shown(tag)
			if err := out.add(shown, tagCells(shown)...); err != nil {
				return err
			}
			return out.flush()
		})
	}
	return cmd
}

// tagMissing adds what helps where a tag is not there.
func tagMissing(err error, name string) error {
	switch {
	case errors.Is(err, hapax.ErrTagNotFound):
		return fmt.Errorf("%w; hapax tags create %s makes it, and hapax tags list shows those that there are", err, signals.Word(name))
	case errors.Is(err, hapax.ErrTagDeleted):
		return fmt.Errorf("%w; hapax tags create %s has it go on above its mark", err, signals.Word(name))
	}
	return err
}

func tagsShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show TAG",
		Short: "Show a tag, even a deleted one",
		Long: `Show prints the tag. If it asks a server whose plugins count, it also prints what they
have counted for the tag: by plugin and caller, in the current window of time and in
the one before. Only administrators see these counts.
` + targetHelp,
		Args: arguments(1, 1),
	}
	asJSON := jsonFlag(cmd)
	where := addTarget(cmd)
	completeFirst(cmd, where, tagNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := hapax.ValidateName("tag", args[0]); err != nil {
			return err
		}
		return where.with(cmd, reads, func(ctx context.Context, t target) error {
			tag, err := t.Tag(ctx, args[0])
			if err != nil {
				return tagMissing(err, args[0])
			}
			usage, err := t.Usage(ctx, args[0])
			// Counts are for administrators only; other callers get the tag without them.
			if err != nil && !errors.Is(err, api.ErrPermissionDenied) {
				return err
			}
			return printTag(cmd, tag, usage, *asJSON)
		})
	}
	return cmd
}

// printTag prints a tag and what was counted of it.
func printTag(cmd *cobra.Command, tag hapax.Tag, usage []client.Usage, asJSON bool) error {
	j := struct {
		api.Tag
		Usage []client.Usage `json:"usage,omitempty"`
	}{define.Shown(tag), usage}
	out := newOutput(cmd, asJSON, tagHeader...)
	if err := out.add(j, tagCells(j.Tag)...); err != nil {
		return err
	}
	if err := out.flush(); err != nil || asJSON || len(usage) == 0 {
		return err
	}
	counted := newOutput(cmd, false, "COUNTED BY", "CALLER", "WINDOW", "NOW", "BEFORE", "LIMIT")
	for _, u := range usage {
		limit := "-"
		if u.Limit > 0 {
			limit = u.Limit.String()
		}
		if err := counted.add(nil, u.Plugin, dash(u.Caller), u.Window.String(), u.Current.String(), u.Previous.String(), limit); err != nil {
			return err
		}
	}
	return counted.flush()
}

func tagsCreateCommand() *cobra.Command {
	return oneTag(creates, "create", "Create a tag, or revive a deleted one above its mark", func(flags *pflag.FlagSet) func(context.Context, target, string) (hapax.Tag, error) {
		kind := flags.String("kind", string(hapax.KindSegment), "segment (counts) or snowflake (holds time and worker)")
		start := flags.Int64("start", 0, "the first number of a segment tag (default 1)")
		step := flags.Int64("step", 0, "how many numbers a segment begins with (default 1000)")
		minStep := flags.Int64("min-step", 0, "lower bound of the adaptive step (default the step)")
		maxStep := flags.Int64("max-step", 0, "upper bound of the adaptive step (default 1000000, or the step)")
		delta := flags.Int64("delta", 0, "issue only the numbers that leave the remainder when divided by this, so that two regions never meet (default 1)")
		remainder := flags.Int64("remainder", 0, "0 to delta - 1")
		pool := flags.String("pool", "", "the worker pool of a snowflake tag (default \"default\")")
		code := flags.String("code", "", "how the numbers are shown, such as 'INV-{yyyy}{MM}{dd}-{seq:6}{check}'")
		zone := flags.String("zone", "", "the time zone of the code's periods, such as Europe/Berlin")
		floors := floorFlags(flags)
		strategy := flags.String("strategy", "", "what issues the numbers, in place of the kind: a strategy that the servers' program has registered")
		ofSource := flags.Bool("of-source", false, "the tag takes over from a sequence, counter or row, as hapax import plans it; a deleted one whose source may issue again is made only so")
		return func(ctx context.Context, t target, name string) (hapax.Tag, error) {
			if *zone != "" && *code == "" {
				return hapax.Tag{}, usagef("--zone needs --code")
			}
			if err := noZeros(flags, "start", "step", "min-step", "max-step", "delta"); err != nil {
				return hapax.Tag{}, err
			}
			// The default of --kind would contradict --strategy snowflake.
			if *strategy != "" && !flags.Changed("kind") {
				*kind = ""
			}
			def, err := define.WithStrategy(hapax.Tag{
				Name: name, Kind: hapax.Kind(*kind), Pool: *pool,
				Start: *start, Step: *step, MinStep: *minStep, MaxStep: *maxStep, Delta: *delta, Remainder: *remainder,
				Extra: define.CodeExtra(*code, *zone),
			}, *strategy)
			if err == nil && len(*floors) > 0 {
				def.Extra, err = floorExtra(def.Extra, *floors)
			}
			if err == nil && *ofSource {
				def.Extra, err = define.WithSource(def.Extra)
			}
			if err == nil {
				def, err = def.WithDefaults()
			}
			if err != nil {
				return def, err
			}
			created, err := t.CreateTag(ctx, def, hapax.CreateExplicit)
			if errors.Is(err, hapax.ErrTagExists) {
				err = fmt.Errorf("%w; hapax tags show %s tells what it is, and hapax tags set %[2]s changes it", err, signals.Word(name))
			}
			return created, err
		}
	})
}

func tagsSetCommand() *cobra.Command {
	return oneTag(changes, "set", "Change a tag", func(flags *pflag.FlagSet) func(context.Context, target, string) (hapax.Tag, error) {
		step := flags.Int64("step", 0, "how many numbers a segment begins with")
		minStep := flags.Int64("min-step", 0, "lower bound of the adaptive step")
		maxStep := flags.Int64("max-step", 0, "upper bound of the adaptive step")
		floor := flags.Int64("floor", 0, "what is granted from now on starts at this number or above, and never goes back; other nodes use up what they hold first")
		code := flags.String("code", "", "another way to show the numbers, of another shape; what was shown before stays readable")
		zone := flags.String("zone", "", "the time zone of the code's periods")
		floors := floorFlags(flags)
		noFloors := flags.Bool("no-floor-from", false, "take the columns away")
		stated := flags.Bool("floor-stated", false, "with --floor, for a tag that is refused because its columns cannot be read: it goes on there")
		return func(ctx context.Context, t target, name string) (hapax.Tag, error) {
			if *zone != "" && *code == "" {
				return hapax.Tag{}, usagef("--zone needs --code")
			}
			given := func(flag string, v *int64) *int64 {
				if flags.Changed(flag) {
					return v
				}
				return nil
			}
			u := driver.TagUpdate{
				Step: given("step", step), MinStep: given("min-step", minStep), MaxStep: given("max-step", maxStep),
				Floor: given("floor", floor),
			}
			if *code != "" {
				u.Extra = new(define.CodeExtra(*code, *zone))
			}
			if err := floorUpdate(&u, *floors, *noFloors, *stated); err != nil {
				return hapax.Tag{}, err
			}
			if u == (driver.TagUpdate{}) {
				return hapax.Tag{}, usagef("nothing to change; give --step, --min-step, --max-step, --floor, --floor-from or --code")
			}
			changed, err := t.UpdateTag(ctx, name, u)
			return changed, tagMissing(err, name)
		}
	})
}

func tagsDeleteCommand() *cobra.Command {
	return oneTag(changes, "delete", "Delete a tag; its numbers are never issued again", func(*pflag.FlagSet) func(context.Context, target, string) (hapax.Tag, error) {
		return func(ctx context.Context, t target, name string) (hapax.Tag, error) {
			deleted, err := t.DeleteTag(ctx, name)
			if errors.Is(err, hapax.ErrTagNotFound) {
				err = fmt.Errorf("%w; hapax tags list shows those that there are", err)
			}
			return deleted, err
		}
	})
}
