package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	leafserve "github.com/hapax-id/hapax/compat/leaf/serve"
	"github.com/hapax-id/hapax/compat/tinyid"
	tinyidserve "github.com/hapax-id/hapax/compat/tinyid/serve"
	"github.com/hapax-id/hapax/internal/audit"
)

// moveHelp tells what the moves of tables have in common.
const moveHelp = `
With --dry-run it shows what a move to native tags would do, and with --apply it does
it: each row becomes a segment tag whose mark lies above every number that the old
system can still issue, by ten of the row's steps or --margin. Marks only grow, so
that it can be repeated. Both watch the tables for --watch, and refuse while they see
old nodes issuing. The block of configuration to go on with is that of --native.

Passwords are not printed. A server takes one from the file that password_file names,
which --write-password writes, or from the variable $%s, from which this
command takes it, too, where neither FILE nor URL has one.
`

// moveFlags are what the moves of tables have in common.
type moveFlags struct {
	dryRun, apply, native, ignore bool
	margin                        int64
	watch                         time.Duration
	writePassword                 string
	asJSON                        *bool
	where                         *targetFlags
}

func addMove(cmd *cobra.Command) *moveFlags {
	f := &moveFlags{}
	flags := cmd.Flags()
	flags.BoolVar(&f.dryRun, "dry-run", false, "show each tag's mark before and after a move to native tags")
	flags.BoolVar(&f.apply, "apply", false, "move: create the native tags, or raise their marks")
	flags.BoolVar(&f.native, "native", false, "print the configuration that goes on with native tags")
	flags.BoolVar(&f.ignore, "ignore-living", false, "go on although old nodes are seen; choose a margin above all that they can issue meanwhile")
	flags.Int64Var(&f.margin, "margin", 0, "how far above a row's max_id the native mark is set (default ten of its steps)")
	flags.DurationVar(&f.watch, "watch", 10*time.Second, "how long the tables are watched for old nodes")
	flags.StringVar(&f.writePassword, "write-password", "", "file to write the passwords to, readable by its owner only, for password_file")
	f.asJSON = jsonFlag(cmd)
	f.where = addTarget(cmd)
	return f
}

// check refuses flags that exclude each other, and reports whether it is a move.
func (f *moveFlags) check() (isMove bool, err error) {
	n := 0
	for _, given := range []bool{f.dryRun, f.apply, f.native} {
		if given {
			n++
		}
	}
	switch {
	case n > 1:
		return false, usagef("--dry-run, --apply and --native exclude each other")
	case f.margin < 0:
		return false, &hapax.ValueError{Field: "--margin", Value: f.margin, Allowed: "0 or more", Err: hapax.ErrInvalidArgument}
	case f.watch <= 0:
		return false, &hapax.ValueError{Field: "--watch", Value: f.watch, Allowed: "more than 0s, such as 10s", Err: hapax.ErrInvalidArgument}
	}
	return f.dryRun || f.apply, nil
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
	t, err := f.where.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(t.explain(do(ctx, t)), t.Close(ctx))
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
	Above     string   `json:"above,omitempty"` // the time that a worker ID goes on above
	Problem   string   `json:"problem,omitempty"`
}

var moveHeader = []string{"TAG", "MARK BEFORE", "MARK AFTER", "NOTE"}

// printMoves shows moves of tags, and returns how many cannot be made.
func printMoves(out *output, all []leaf.Move) (impossible int, err error) {
	for _, m := range all {
		j := moveJSON{Tag: m.Tag.Name, Before: hapax.ID(m.Before), After: hapax.ID(m.After)}
		if m.Tag.Delta > 1 {
			j.Delta, j.Remainder = m.Tag.Delta, m.Tag.Remainder
		}
		note := ""
		switch {
		case m.Reason != nil:
			impossible++
			j.Problem = m.Reason.Error()
			note = errorLine(m.Reason)
		case !m.Changes():
			note = "nothing to do"
		case m.Before == 0:
			note = "new"
		}
		if j.Delta > 0 && m.Reason == nil {
			note += fmt.Sprintf(" (delta %d, remainder %d)", j.Delta, j.Remainder)
		}
		if err := out.add(j, m.Tag.Name, mark(m.Before), mark(m.After), dash(note)); err != nil {
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

// closing tells what was done.
func (f *moveFlags) closing(cmd *cobra.Command, impossible int) error {
	if f.dryRun {
		fmt.Fprintln(cmd.ErrOrStderr(), "hapax: nothing was changed; --apply does it")
	}
	if impossible > 0 {
		return fmt.Errorf("%d of the rows cannot be moved, for the reasons given; correct them and repeat", impossible)
	}
	return nil
}

func importLeafCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "leaf [FILE]",
		Short: "Read Leaf's properties, and move its table and tree to native tags",
		Long: `Leaf reads leaf.properties, of the server or of the starter, or --table, --tree, --name
and --port instead, and prints the block "compat: leaf:" of a server that serves from
the same table and tree. FILE is - for standard input.
` + fmt.Sprintf(moveHelp, leafserve.PasswordEnv) + `
The worker IDs of the tree's nodes are carried over to the native pool ` + leafserve.Pool + `,
each above the node's timestamp and 5 s, so that no clock that is behind repeats a
number; a node that reports is a node that is alive.
` + targetHelp,
		Example: `  hapax import leaf leaf.properties --write-password /etc/hapax/leaf.password > hapax.yaml
  hapax import leaf leaf.properties --dry-run --data /var/lib/hapax
  hapax import leaf --table mysql://leaf@10.0.0.3/leaf --apply --server http://127.0.0.1:8080`,
		Args: arguments(0, 1),
	}
	var given leaf.Config
	flags := cmd.Flags()
	table := flags.String("table", "", "mysql:// URL of the database with leaf_alloc")
	flags.StringVar(&given.Tree, "tree", "", "zk:// URL of the ZooKeeper with the tree")
	flags.StringVar(&given.Name, "name", "", "leaf.name")
	flags.IntVar(&given.Port, "port", 0, "leaf.snowflake.port")
	move := addMove(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		isMove, err := move.check()
		if err != nil {
			return err
		}
		c, err := leafConfig(cmd, args, given, *table)
		if err != nil {
			return err
		}
		if isMove {
			return move.with(cmd, func(ctx context.Context, t target) error { return moveLeaf(ctx, cmd, move, c, t) })
		}
		text := c.NativeYAML()
		if !move.native {
			file, err := move.passwordFile(c.Password.Reveal())
			if err != nil {
				return err
			}
			text = c.YAML(file)
		}
		_, err = cmd.OutOrStdout().Write([]byte(text))
		return err
	}
	return cmd
}

// leafConfig reads a file, or flags.
func leafConfig(cmd *cobra.Command, args []string, given leaf.Config, table string) (leaf.Config, error) {
	byFlags := table != "" || given.Tree != ""
	if (len(args) == 1) == byFlags {
		return given, usagef("give FILE, or --table or --tree instead")
	}
	if byFlags {
		given.Snowflake = given.Tree != ""
		if table != "" {
			if err := given.SetTable(table); err != nil {
				return given, err
			}
		}
		if given.Snowflake && given.Name == "" {
			return given, usagef("--tree needs --name, and --port unless it is for a move")
		}
	} else {
		in, err := openImport(cmd, args[0])
		if err != nil {
			return given, err
		}
		defer in.Close()
		if given, err = leaf.ReadProperties(in); err != nil {
			return given, fmt.Errorf("%s: %w", args[0], err)
		}
	}
	if given.Password == "" {
		given.Password = leaf.Secret(os.Getenv(leafserve.PasswordEnv))
	}
	return given, nil
}

// moveLeaf moves a table and a tree.
func moveLeaf(ctx context.Context, cmd *cobra.Command, f *moveFlags, c leaf.Config, t target) error {
	o := leaf.MoveOptions{Margin: f.margin, Watch: f.watch, IgnoreLiving: f.ignore}
	var table *leaf.Table
	var err error
	if c.Segment {
		if table, err = leaf.OpenTable(ctx, c.TableURL(), leaf.TableOptions{}); err != nil {
			return err
		}
		defer table.Close()
	}
	if c.Snowflake {
		if o.Tree, err = leaf.OpenTree(ctx, c.Tree, leaf.TreeOptions{Name: c.Name}); err != nil {
			return err
		}
		defer o.Tree.Close()
	}
	progress, end := bar(cmd, "comparing")
	o.Progress = progress
	all, err := leaf.PlanMoves(ctx, table, t, o)
	end()
	if err != nil {
		return err
	}
	var workers []leaf.WorkerMove
	pool, mayLease := t.(leaf.PoolTarget)
	if o.Tree != nil {
		if !mayLease {
			return fmt.Errorf("%w: worker IDs cannot be carried over there", hapax.ErrNotSupported)
		}
		if workers, err = leaf.PlanWorkers(ctx, o.Tree, pool, leafserve.Pool); err != nil {
			return err
		}
	}
	if f.apply {
		progress, end := bar(cmd, "moving")
		total := len(all) + len(workers)
		err := leaf.ApplyMoves(ctx, t, all, func(done, _ int) { progress(done, total) })
		if err == nil && o.Tree != nil {
			err = leaf.ApplyWorkers(ctx, pool, leafserve.Pool, workers, func(done, _ int) { progress(len(all)+done, total) })
		}
		end()
		if err != nil {
			return err
		}
	}
	out := newOutput(cmd, *f.asJSON, moveHeader...)
	impossible, err := printMoves(out, all)
	if err != nil {
		return err
	}
	for _, w := range workers {
		before, note := "-", "nothing to do"
		if !w.Before.IsZero() {
			before = w.Before.UTC().Format(time.RFC3339)
		}
		if w.Changes() {
			note = "above node " + w.Node.Name
		}
		above := w.Above.UTC().Format(time.RFC3339)
		if err := out.add(moveJSON{Worker: &w.Node.Worker, Above: above}, fmt.Sprintf("worker %s/%d", leafserve.Pool, w.Node.Worker), before, above, note); err != nil {
			return err
		}
	}
	return errors.Join(out.flush(), f.closing(cmd, impossible))
}

func importTinyIDCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tinyid [FILE]",
		Short: "Read TinyID's properties, and move its tables to native tags",
		Long: `Tinyid reads the application.properties of TinyID's server, or --database instead, once
for each, and prints the block "compat: tinyid:" of a server that serves from the same
databases. FILE is - for standard input.
` + fmt.Sprintf(moveHelp, tinyidserve.PasswordEnv) + `
A biz_type of one database keeps its delta and remainder; one of several becomes a tag
that issues every number, above the marks of all. Segments that clients hold lie below
the marks, so that clients need not be stopped. What --native prints has the hashes of
the tokens in tiny_id_token, so that clients go on with theirs.
` + targetHelp,
		Example: `  hapax import tinyid application.properties --write-password /etc/hapax/tinyid.passwords > hapax.yaml
  hapax import tinyid application.properties --dry-run --data /var/lib/hapax
  hapax import tinyid --database mysql://tinyid@10.0.0.3/db1 --database mysql://tinyid@10.0.0.4/db2 --apply`,
		Args: arguments(0, 1),
	}
	databases := cmd.Flags().StringArray("database", nil, "mysql:// URL of a database with tiny_id_info and tiny_id_token")
	move := addMove(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		isMove, err := move.check()
		if err != nil {
			return err
		}
		c, err := tinyidConfig(cmd, args, *databases)
		if err != nil {
			return err
		}
		if isMove {
			return move.with(cmd, func(ctx context.Context, t target) error { return moveTinyID(ctx, cmd, move, c, t) })
		}
		var text string
		if move.native {
			text, err = nativeTinyID(cmd.Context(), c)
		} else {
			var file string
			file, err = move.passwordFile(c.PasswordLines())
			text = c.YAML(file)
		}
		if err != nil {
			return err
		}
		_, err = cmd.OutOrStdout().Write([]byte(text))
		return err
	}
	return cmd
}

// tinyidConfig reads a file, or flags.
func tinyidConfig(cmd *cobra.Command, args, databases []string) (tinyid.Config, error) {
	var c tinyid.Config
	if (len(args) == 1) == (len(databases) > 0) {
		return c, usagef("give FILE, or --database instead")
	}
	for _, at := range databases {
		if err := c.AddDatabase(at); err != nil {
			return c, err
		}
	}
	if len(args) == 1 {
		in, err := openImport(cmd, args[0])
		if err != nil {
			return c, err
		}
		defer in.Close()
		if c, err = tinyid.ReadProperties(in); err != nil {
			return c, fmt.Errorf("%s: %w", args[0], err)
		}
		if len(c.Databases) == 0 {
			return c, fmt.Errorf("%w: %s is a client's: it names servers (%v) and no databases; the client goes on as it is, with the address of hapax in tinyid.server", hapax.ErrInvalidArgument, args[0], c.Servers)
		}
	}
	for i := range c.Passwords {
		if c.Passwords[i] == "" {
			c.Passwords[i] = tinyid.Secret(os.Getenv(tinyidserve.PasswordEnv))
		}
	}
	return c, nil
}

func nativeTinyID(ctx context.Context, c tinyid.Config) (string, error) {
	store, err := tinyid.Open(ctx, c.URLs(), tinyid.Options{})
	if err != nil {
		return "", err
	}
	text, err := tinyid.NativeYAML(ctx, store)
	return text, errors.Join(err, store.Close())
}

// moveTinyID moves the tables of all databases.
func moveTinyID(ctx context.Context, cmd *cobra.Command, f *moveFlags, c tinyid.Config, t target) error {
	store, err := tinyid.Open(ctx, c.URLs(), tinyid.Options{})
	if err != nil {
		return err
	}
	defer store.Close()
	progress, end := bar(cmd, "comparing")
	all, err := tinyid.PlanMoves(ctx, store, t, tinyid.MoveOptions{Margin: f.margin, Watch: f.watch, IgnoreLiving: f.ignore, Progress: progress})
	end()
	if err != nil {
		return err
	}
	if f.apply {
		progress, end := bar(cmd, "moving")
		err := tinyid.ApplyMoves(ctx, t, all, progress)
		end()
		if err != nil {
			return err
		}
	}
	out := newOutput(cmd, *f.asJSON, moveHeader...)
	impossible, err := printMoves(out, all)
	if err != nil {
		return err
	}
	return errors.Join(out.flush(), f.closing(cmd, impossible))
}
