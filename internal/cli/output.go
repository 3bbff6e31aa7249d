package cli

import (
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// output writes a command's results in the form that suits the reader: rows of
// a table, or JSON values of one line each.
type output struct {
	w      io.Writer
	json   *json.Encoder // nil: a table
	table  *tabwriter.Writer
	header []string
}

// jsonFlag adds --json to a command.
func jsonFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("json", false, "print JSON, one value a line")
}

// newOutput returns an output for rows under the given header, which only
// people get to see.
func newOutput(cmd *cobra.Command, asJSON bool, header ...string) *output {
	o := &output{w: cmd.OutOrStdout(), header: header}
	switch {
	case asJSON:
		o.json = json.NewEncoder(o.w)
		o.json.SetEscapeHTML(false)
	case isTerminal(o.w):
		o.table = tabwriter.NewWriter(o.w, 0, 0, 2, ' ', tabwriter.StripEscape)
		o.w = o.table
	}
	return o
}

// add writes one result: value as JSON, or the cells as a row.
func (o *output) add(value any, cells ...string) error {
	if o.json != nil {
		return o.json.Encode(value)
	}
	// With the first row, so that an empty list prints nothing.
	if o.table != nil && o.header != nil {
		if err := o.row(o.header); err != nil {
			return err
		}
		o.header = nil
	}
	return o.row(cells)
}

func (o *output) row(cells []string) error {
	shown := make([]string, len(cells))
	for i, cell := range cells {
		shown[i] = oneLine(cell)
	}
	_, err := io.WriteString(o.w, strings.Join(shown, "\t")+"\n")
	return err
}

// oneLine returns text, quoted if a terminal or a reader of columns would not take it for
// text: names in the tables of other systems are whatever somebody put there.
func oneLine(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl) {
		return text
	}
	return strconv.Quote(text)
}

// flush writes what is held back to align it.
func (o *output) flush() error {
	if o.table == nil {
		return nil
	}
	return o.table.Flush()
}
