package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

// completeWithin is how long a shell waits for names from a server or store.
const completeWithin = 2 * time.Second

// completeFlag has shells offer values for a flag.
func completeFlag(cmd *cobra.Command, flag string, values ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag was just defined
	}
}

// completeFirst has shells offer names, which the target knows, for the first
// argument.
func completeFirst(cmd *cobra.Command, where *targetFlags, names func(context.Context, target) ([]string, error)) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var found []string
		ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
		defer cancel()
		t, err := where.open(ctx, reads)
		// An error would stand in the line that somebody is typing.
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer func() { _ = t.Close(ctx) }() // nothing was changed
		if found, err = names(ctx, t); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// tagNames lists the first tags that are alive.
func tagNames(ctx context.Context, t target) ([]string, error) {
	tags, err := t.Tags(ctx, "", tagsPage)
	var names []string
	for _, tag := range tags {
		if !tag.Deleted {
			names = append(names, tag.Name)
		}
	}
	return names, err
}

func poolNames(ctx context.Context, t target) ([]string, error) {
	pools, err := t.PoolStatuses(ctx)
	var names []string
	for _, p := range pools {
		names = append(names, p.Name)
	}
	return names, err
}
