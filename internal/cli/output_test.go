package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestRowsStayRows(t *testing.T) {
	var got strings.Builder
	cmd := &cobra.Command{}
	cmd.SetOut(&got)
	out := newOutput(cmd, false, "TAG", "NOTE")
	for _, name := range []string{"orders", "späße", "a\tb", "a\nb\t7\t-", "\x1b[2J", "\xff"} {
		if err := out.add(nil, name, "-"); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.flush(); err != nil {
		t.Fatal(err)
	}
	const want = "orders\t-\nspäße\t-\n" + `"a\tb"` + "\t-\n" + `"a\nb\t7\t-"` + "\t-\n" + `"\x1b[2J"` + "\t-\n" + `"\xff"` + "\t-\n"
	if got.String() != want {
		t.Errorf("got %q, want %q", got.String(), want)
	}
}
