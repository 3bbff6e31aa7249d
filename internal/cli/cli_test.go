package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hapax-id/hapax"
)

func TestSpareNegativeIDs(t *testing.T) {
	for given, want := range map[string]string{
		"":                               "",
		"next -5":                        "next -5",
		"parse 5":                        "parse 5",
		"parse -5":                       "parse -- -5",
		"parse -5 --json 6":              "parse --json -- -5 6",
		"parse --layout leaf -5":         "parse --layout leaf -- -5",
		"parse --layout=leaf -5 -":       "parse --layout=leaf -- -5 -",
		"parse -5 --layout leaf --json":  "parse --layout leaf --json -- -5",
		"parse -- -5":                    "parse -- -5",
		"parse -x -5":                    "parse -x -- -5",
		"parse -5 --layout":              "parse --layout -- -5",
		"parse --json":                   "parse --json",
		"parse -9223372036854775808 1 2": "parse -- -9223372036854775808 1 2",
	} {
		if got := strings.Join(spareNegativeIDs(strings.Fields(given)), " "); got != want {
			t.Errorf("%q becomes %q, want %q", given, got, want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, test := range []struct {
		err  error
		code int
		line string
	}{
		{usagef("what?"), exitUsage, "hapax: what?"},
		{&hapax.ValueError{Field: "n", Value: 0, Allowed: "1", Err: hapax.ErrInvalidArgument}, exitUsage, "hapax: invalid n 0: want 1"},
		{fmt.Errorf("%w: x", hapax.ErrInvalidTag), exitUsage, "hapax: a tag name is valid UTF-8 of 1 to 128 bytes without control or invisible characters: x"},
		{fmt.Errorf("%w: x", hapax.ErrStoreUnavailable), exitFailure, "hapax: the store cannot be reached or did not answer in time: x"},
		{errors.Join(errors.New("a"), errors.New("b  c")), exitFailure, "hapax: a; b  c"},
	} {
		if code, line := exitCode(test.err), errorLine(test.err); code != test.code || line != test.line {
			t.Errorf("%v: code %d, %q, want %d, %q", test.err, code, line, test.code, test.line)
		}
	}
}

// For people there is a header and the columns are aligned.
func TestTable(t *testing.T) {
	var out bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	o := newOutput(cmd, false, "TAG", "NEXT")
	o.table = tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	o.w = o.table
	for _, row := range [][]string{{"orders", "1"}, {"u", "1000"}} {
		if err := o.add(nil, row...); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.flush(); err != nil {
		t.Fatal(err)
	}
	if want := "TAG     NEXT\norders  1\nu       1000\n"; out.String() != want {
		t.Errorf("the table is\n%s\nwant\n%s", out.String(), want)
	}
}

func TestIsTerminal(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if isTerminal(f) || isTerminal(&bytes.Buffer{}) {
		t.Error("a file or a buffer is taken for a terminal")
	}
}

// Every command explains itself, and every flag too.
func TestHelpIsComplete(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: the short help is %q", cmd.CommandPath(), cmd.Short)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: --%s has no help", cmd.CommandPath(), f.Name)
			}
		})
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newRoot(Streams{}, nil))
}
