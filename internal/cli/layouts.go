package cli

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
)

// layoutInfo describes a layout.
type layoutInfo struct {
	Name         string    `json:"name,omitempty"`
	Spec         string    `json:"spec"`
	Epoch        time.Time `json:"epoch"`
	Unit         string    `json:"unit"`
	Ends         time.Time `json:"ends"`
	Workers      int64     `json:"workers"`
	IDsPerSecond float64   `json:"ids_per_second"` // of one worker
}

func layoutsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "layouts [NAME|SPEC...]",
		Short: "List the layouts of snowflake numbers",
		Long: `Layouts lists the built-in layouts, or the ones given: the bits of each field from
the highest down, the epoch, the unit of the time field, when the time ends, how
many workers there can be and how many numbers a second each can issue.`,
		Args: arguments(0, 1<<10),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return hapax.Layouts(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			args = hapax.Layouts()
		}
		out := newOutput(cmd, *asJSON, "NAME", "BITS", "EPOCH", "UNIT", "ENDS", "WORKERS", "IDS/S PER WORKER")
		for _, arg := range args {
			l, err := hapax.ParseLayout(arg)
			if err != nil {
				return errorAfter(out, err)
			}
			info := layoutInfo{l.Name(), l.String(), l.Epoch(), unit(l.Unit()), ends(l), l.Workers(), l.PerSecond()}
			err = out.add(info, dash(info.Name), bits(l), info.Epoch.Format(time.RFC3339Nano), info.Unit,
				info.Ends.Format(time.DateOnly), strconv.FormatInt(info.Workers, 10), strconv.FormatFloat(info.IDsPerSecond, 'f', -1, 64))
			if err != nil {
				return err
			}
		}
		return out.flush()
	}
	return cmd
}

// ends returns when the layout's time ends, or the last instant that JSON can
// tell where it ends with the year 9999.
func ends(l hapax.Layout) time.Time {
	if at := l.Ends(); at.Year() <= 9999 {
		return at
	}
	return time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
}

// bits lists the layout's fields and their widths.
func bits(l hapax.Layout) string {
	var text string
	for f := range l.Fields() {
		if text != "" {
			text += ","
		}
		text += f.Name + ":" + strconv.Itoa(f.Bits)
	}
	return text
}

// unit writes a unit without the zeros of smaller ones: 1h, not 1h0m0s.
func unit(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// dash stands for an empty cell, so that columns stay countable.
func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
