package cli

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax"
)

// tagsPage is how many tags are asked for at a time.
const tagsPage = 500

var tagHeader = []string{"TAG", "KIND", "NEXT", "STEP", "MIN", "MAX", "POOL", "STATE"}

// tagCells returns a tag as a row under tagHeader.
func tagCells(t hapax.Tag) []string {
	number := func(v int64) string {
		if t.Kind != hapax.KindSegment {
			return "-"
		}
		return strconv.FormatInt(v, 10)
	}
	state := "live"
	if t.Deleted {
		state = "deleted"
	}
	return []string{t.Name, string(t.Kind), number(t.Mark), number(t.Step), number(t.MinStep), number(t.MaxStep), dash(t.Pool), state}
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
		return where.with(cmd, func(ctx context.Context, t target) error {
			out := newOutput(cmd, *asJSON, tagHeader...)
			for after := ""; ; {
				page, err := t.Tags(ctx, after, tagsPage)
				if err != nil {
					return errorAfter(out, err)
				}
				for _, tag := range page {
					after = tag.Name
					if tag.Deleted && !*all {
						continue
					}
					if err := out.add(newTagJSON(tag), tagCells(tag)...); err != nil {
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
func oneTag(use, short string, prepare func(*pflag.FlagSet) func(context.Context, target, string) (hapax.Tag, error)) *cobra.Command {
	cmd := &cobra.Command{Use: use + " TAG", Short: short, Args: arguments(1, 1)}
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
		return where.with(cmd, func(ctx context.Context, t target) error {
			tag, err := do(ctx, t, args[0])
			if err != nil {
				return err
			}
			out := newOutput(cmd, *asJSON, tagHeader...)
			if err := out.add(newTagJSON(tag), tagCells(tag)...); err != nil {
				return err
			}
			return out.flush()
		})
	}
	return cmd
}

func tagsShowCommand() *cobra.Command {
	return oneTag("show", "Show a tag, even a deleted one", func(*pflag.FlagSet) func(context.Context, target, string) (hapax.Tag, error) {
		return func(ctx context.Context, t target, name string) (hapax.Tag, error) { return t.Tag(ctx, name) }
	})
}

func tagsCreateCommand() *cobra.Command {
	return oneTag("create", "Create a tag, or revive a deleted one above its mark", func(flags *pflag.FlagSet) func(context.Context, target, string) (hapax.Tag, error) {
		kind := flags.String("kind", string(hapax.KindSegment), "segment (counts) or snowflake (holds time and worker)")
		start := flags.Int64("start", 0, "the first number of a segment tag (default 1)")
		step := flags.Int64("step", 0, "how many numbers a segment begins with (default 1000)")
		minStep := flags.Int64("min-step", 0, "lower bound of the adaptive step (default the step)")
		maxStep := flags.Int64("max-step", 0, "upper bound of the adaptive step (default 1000000, or the step)")
		pool := flags.String("pool", "", "the worker pool of a snowflake tag (default \"default\")")
		return func(ctx context.Context, t target, name string) (hapax.Tag, error) {
			for _, f := range []string{"start", "step", "min-step", "max-step"} {
				if flags.Changed(f) && flags.Lookup(f).Value.String() == "0" {
					return hapax.Tag{}, &hapax.ValueError{Field: f, Value: 0, Allowed: "1 or more", Err: hapax.ErrInvalidArgument}
				}
			}
			def, err := hapax.Tag{
				Name: name, Kind: hapax.Kind(*kind), Pool: *pool,
				Start: *start, Step: *step, MinStep: *minStep, MaxStep: *maxStep,
			}.WithDefaults()
			if err != nil {
				return def, err
			}
			return t.CreateTag(ctx, def, hapax.CreateExplicit)
		}
	})
}

func tagsSetCommand() *cobra.Command {
	return oneTag("set", "Change a segment tag", func(flags *pflag.FlagSet) func(context.Context, target, string) (hapax.Tag, error) {
		step := flags.Int64("step", 0, "how many numbers a segment begins with")
		minStep := flags.Int64("min-step", 0, "lower bound of the adaptive step")
		maxStep := flags.Int64("max-step", 0, "upper bound of the adaptive step")
		floor := flags.Int64("floor", 0, "the next segment starts at this number or above; it never goes back")
		return func(ctx context.Context, t target, name string) (hapax.Tag, error) {
			given := func(flag string, v *int64) *int64 {
				if flags.Changed(flag) {
					return v
				}
				return nil
			}
			u := hapax.TagUpdate{
				Step: given("step", step), MinStep: given("min-step", minStep), MaxStep: given("max-step", maxStep),
				Floor: given("floor", floor),
			}
			if u == (hapax.TagUpdate{}) {
				return hapax.Tag{}, usagef("nothing to change; give --step, --min-step, --max-step or --floor")
			}
			return t.UpdateTag(ctx, name, u)
		}
	})
}

func tagsDeleteCommand() *cobra.Command {
	return oneTag("delete", "Delete a tag; its numbers are never issued again", func(*pflag.FlagSet) func(context.Context, target, string) (hapax.Tag, error) {
		return func(ctx context.Context, t target, name string) (hapax.Tag, error) { return t.DeleteTag(ctx, name) }
	})
}
