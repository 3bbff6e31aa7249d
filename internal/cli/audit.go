package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/audit"
)

// maxAuditFiles bounds the arguments of audit.
const maxAuditFiles = 1 << 16

func auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit FILE...",
		Short: "Prove a dump of numbers unique",
		Long: `Audit reads dumps of numbers and proves that each occurs once. It prints how many
there are, which occur more than once, how often and where, and which lines hold no
number. The exit code is 0 if all is well, 1 if anything is wrong, and 2 if the
command line is wrong.

A file is text with a number a line, or with a JSON object a line that has id or ids,
or CSV with --column. It may be compressed with gzip, and - is standard input. The
audit uses at most --memory; beyond that, numbers are sorted in a temporary file of
up to 8 bytes a number.

With --layout, numbers are counted by worker and by day (in UTC), and those that the
layout cannot have are reported. With --grants, those outside every grant are, and
numbers are counted by node. Grants are the ledger in a node's data directory (see
hapax trace), or a file that holds one a line, with tabs between:

  tag/orders          1            1001         node-a  2026-01-02T03:04:05Z
  worker/default/7    67039200000  67039210000  node-b  2026-01-02T03:04:05Z

With --column URL it reads TABLE.COLUMN of a live database instead, in the order of its
index and by short queries that change nothing, and with --tag it compares the largest
number with that tag's mark, which it asks the server or store for.

A tag's grants are numbers, up to but not including the second. A worker's are ticks
of its pool's layout, and need --layout.`,
		Example: `  hapax audit ids.txt
  hapax audit --layout leaf --column id orders-1.csv.gz orders-2.csv.gz
  hapax audit --grants node-a/hapax-data --grants node-b/hapax-data --tag orders orders.txt
  hapax audit --column env:SHOP_DB --tag orders orders.id
  mariadb -BN -e 'SELECT id FROM orders' shop | hapax audit --json -`,
		Args: arguments(1, maxAuditFiles),
	}
	flags := cmd.Flags()
	var opts audit.Options
	flags.StringVar(&opts.Column, "column", "", "read CSV: the column's name in the first record, or its place from 1 where there are no names; or a database, by its URL, env:NAME or file:PATH, of which TABLE.COLUMN is read")
	rate := flags.Int64("rate", 20_000, "rows a second that are read of a database at most (0: no bound)")
	separator := flags.String("separator", ",", "what separates the columns: one character, or tab")
	memory := flags.String("memory", "1GiB", "memory for sorting (1MiB to 1TiB)")
	flags.StringVar(&opts.Temp, "temp", "", "directory for the temporary file (default: the system's)")
	flags.IntVar(&opts.Show, "show", audit.DefaultShow, "how many of each kind of what is wrong to list (0 to 1048576)")
	layoutText := flags.String("layout", "", "count by worker and day: a built-in layout or a spec (see hapax layouts)")
	grants := flags.StringArray("grants", nil, "file of grants to hold the numbers against, or the data directory of a node for its ledger; may be given several times")
	tag := flags.String("tag", "", "the tag that the numbers are of, where there are grants of several")
	pool := flags.String("pool", "", "the pool that the numbers are of, where there are grants of several")
	asJSON := jsonFlag(cmd)
	where := addTarget(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if isDatabase(opts.Column) {
			return columnAudit{opts.Column, *tag, *rate, asJSON, where}.run(cmd, args)
		}
		var err error
		if opts.Memory, err = parseSize("memory", *memory); err != nil {
			return err
		}
		if opts.Separator, err = parseSeparator(*separator); err != nil {
			return err
		}
		if *layoutText != "" {
			if opts.Layout, err = hapax.ParseLayout(*layoutText); err != nil {
				return err
			}
		}
		if opts.Of, err = auditedLine(len(*grants) > 0, *tag, *pool, *layoutText); err != nil {
			return err
		}
		if len(*grants) > 0 {
			var damaged int
			if opts.Grants, damaged, err = audit.ReadGrants(cmd.Context(), *grants...); err != nil {
				return missingIsUsage(err)
			}
			if damaged > 0 {
				cmd.PrintErrf("hapax: %d records of the ledger cannot be read; numbers that they tell of are reported as outside every grant\n", damaged)
			}
		}
		bar := newProgressBar(cmd.ErrOrStderr())
		opts.Progress = bar.update
		report, err := audit.Run(cmd.Context(), args, cmd.InOrStdin(), opts)
		bar.clear()
		if err != nil {
			return missingIsUsage(err)
		}
		if *asJSON {
			err = newOutput(cmd, true).add(report)
		} else {
			err = printAudit(cmd, report)
		}
		if err != nil {
			return err
		}
		return auditVerdict(report)
	}
	return cmd
}

// missingIsUsage makes an error of the command line of one that says that a file is
// not there.
func missingIsUsage(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return usagef("%v", err)
	}
	return err
}

// auditedLine returns the tag or pool whose grants count.
func auditedLine(grants bool, tag, pool, layout string) (string, error) {
	switch {
	case !grants && tag+pool != "":
		return "", usagef("--tag and --pool choose among grants: give --grants FILE, too")
	case tag != "" && (pool != "" || layout != ""):
		return "", usagef("--tag is for numbers of a segment; --pool and --layout are for those that hold a time")
	case pool != "" && layout == "":
		return "", usagef("--pool needs --layout: grants of a pool are ticks of its layout")
	case pool != "":
		return pool, nil
	}
	return tag, nil
}

// parseSize reads a number of bytes, such as 512MiB.
func parseSize(field, text string) (int64, error) {
	units := []struct {
		suffix string
		bytes  int64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"", 1}}
	// The suffix of plain bytes is last: every text ends with it.
	for _, u := range units {
		digits, found := strings.CutSuffix(text, u.suffix)
		// Divided: a product that overflowed could pass for a small one.
		if n, err := strconv.ParseInt(digits, 10, 64); found && err == nil && n >= 0 && n <= audit.MaxMemory/u.bytes {
			return n * u.bytes, nil
		}
	}
	return 0, &hapax.ValueError{Field: field, Value: text, Allowed: "up to 1TiB: an integer, followed by KiB, MiB, GiB or TiB", Err: hapax.ErrInvalidArgument}
}

func parseSeparator(text string) (byte, error) {
	if text == "tab" {
		return '\t', nil
	}
	if len(text) != 1 {
		return 0, &hapax.ValueError{Field: "separator", Value: text, Allowed: "one character of ASCII, or tab", Err: hapax.ErrInvalidArgument}
	}
	return text[0], nil
}

// printAudit prints a row for each count, its name first.
func printAudit(cmd *cobra.Command, r *audit.Report) error {
	out := newOutput(cmd, false)
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	rows := [][]string{{"numbers", number(r.Numbers)}, {"different", number(r.Distinct)}}
	if r.Min != nil {
		rows = append(rows, []string{"smallest", r.Min.String()}, []string{"largest", r.Max.String()})
	}
	findings := func(what, each string, f *audit.Findings) {
		if f == nil {
			return
		}
		rows = append(rows, []string{what, number(f.Numbers)})
		for _, x := range f.List {
			rows = append(rows, []string{each, x.ID.String(), times(x.Times), places(x)})
		}
	}
	findings("duplicates", "duplicate", &r.Duplicates)
	findings("not of the layout", "misfit", r.Misfits)
	findings("outside every grant", "outside", r.Outside)
	rows = append(rows, []string{"lines without a number", number(r.Invalid.Lines)})
	for _, x := range r.Invalid.List {
		rows = append(rows, []string{"no number", strconv.Quote(x.Text), place(x.Place)})
	}
	for _, x := range r.Unreadable {
		rows = append(rows, []string{"unreadable", x.File, "after " + number(x.Lines) + " lines", x.Error})
	}
	for _, x := range r.Nodes {
		rows = append(rows, []string{"node", x.Node, number(x.Numbers)})
	}
	for _, x := range r.Workers {
		rows = append(rows, []string{"worker", number(x.Worker), number(x.Numbers)})
	}
	if r.Others > 0 {
		rows = append(rows, []string{"worker", "others", number(r.Others)})
	}
	for _, x := range r.Days {
		rows = append(rows, []string{"day", x.Day, number(x.Numbers)})
	}
	for _, row := range rows {
		if err := out.add(nil, row...); err != nil {
			return err
		}
	}
	return out.flush()
}

func times(n int64) string {
	if n == 1 {
		return "once"
	}
	return strconv.FormatInt(n, 10) + " times"
}

func place(p audit.Place) string {
	name := p.File
	if name == "-" {
		name = "standard input"
	}
	return name + ":" + strconv.FormatInt(p.Line, 10)
}

// places lists where a number stands.
func places(f audit.Finding) string {
	var all []string
	for _, p := range f.Places {
		all = append(all, place(p))
	}
	if more := f.Times - int64(len(all)); more > 0 && len(all) > 0 {
		all = append(all, "…")
	}
	return dash(strings.Join(all, ", "))
}

// auditVerdict is the error for a dump that something is wrong with.
func auditVerdict(r *audit.Report) error {
	var wrong []string
	say := func(n int64, one, many string) {
		switch {
		case n == 1:
			wrong = append(wrong, "1 "+one)
		case n > 1:
			wrong = append(wrong, strconv.FormatInt(n, 10)+" "+many)
		}
	}
	say(r.Duplicates.Numbers, "number occurs more than once", "numbers occur more than once")
	if r.Misfits != nil {
		say(r.Misfits.Numbers, "number is not of the layout", "numbers are not of the layout")
	}
	if r.Outside != nil {
		say(r.Outside.Numbers, "number is outside every grant", "numbers are outside every grant")
	}
	say(r.Invalid.Lines, "line holds no number", "lines hold no number")
	say(int64(len(r.Unreadable)), "file cannot be read to its end", "files cannot be read to their end")
	if len(wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%s", strings.Join(wrong, "; "))
}
