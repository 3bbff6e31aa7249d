package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/audit"
	"github.com/hapax-id/hapax/internal/server"
)

// A columnAudit proves a column of a database unique, and below its tag's mark.
type columnAudit struct {
	url, tag string
	rate     int64
	asJSON   *bool
	where    *targetFlags
}

// isDatabase reports whether --column names a database, and not a column of CSV.
func isDatabase(column string) bool {
	return strings.Contains(column, "://") || strings.HasPrefix(column, "env:") || strings.HasPrefix(column, "file:")
}

// columnJSON is a column as --json prints it.
type columnJSON struct {
	Rows       int64             `json:"rows"`
	Distinct   int64             `json:"distinct"`
	Min        hapax.ID          `json:"min"`
	Max        hapax.ID          `json:"max"`
	Duplicates int64             `json:"duplicates"`
	First      []server.Repeated `json:"first,omitempty"`
	Mark       hapax.ID          `json:"mark,omitzero"`
}

func (a columnAudit) run(cmd *cobra.Command, args []string) error {
	at := -1
	if len(args) == 1 {
		at = strings.LastIndex(args[0], ".")
	}
	if at < 1 {
		return usagef("with a database, give one TABLE.COLUMN; usage: hapax audit --column URL TABLE.COLUMN")
	}
	if a.rate < 0 {
		return &hapax.ValueError{Field: "--rate", Value: a.rate, Allowed: "0, for no bound, or more", Err: hapax.ErrInvalidArgument}
	}
	o := server.ScanOptions{Rate: a.rate}
	if a.tag != "" { // before a long scan, if only to see that it is there
		err := a.where.with(cmd, reads, func(ctx context.Context, t target) error {
			tag, err := t.Tag(ctx, a.tag)
			o.Delta, o.Remainder = tag.Delta, tag.Remainder
			return err
		})
		if err != nil {
			return err
		}
	}
	bar, began := newProgressBar(cmd.ErrOrStderr()), time.Now()
	o.Progress = func(done float64, rows int64) {
		bar.update(audit.Progress{Phase: "reading", Done: rows, Total: int64(float64(rows) / max(done, 1e-9)), Elapsed: time.Since(began)})
	}
	found, err := server.ScanColumn(cmd.Context(), a.url, args[0][:at], args[0][at+1:], o)
	bar.clear()
	if err != nil {
		return err
	}
	j := columnJSON{Rows: found.Rows, Distinct: found.Numbers, Min: hapax.ID(found.Min), Max: hapax.ID(found.Max), Duplicates: found.Twice, First: found.First}
	if a.tag != "" { // asked after the rows were read, which all were issued by then
		err := a.where.with(cmd, reads, func(ctx context.Context, t target) error {
			tag, err := t.Tag(ctx, a.tag)
			j.Mark = hapax.ID(tag.Mark)
			return err
		})
		if err != nil {
			return err
		}
	}
	out := newOutput(cmd, *a.asJSON)
	if *a.asJSON {
		err = out.add(j)
	} else {
		rows := [][]string{{"rows", strconv.FormatInt(j.Rows, 10)}, {"different", strconv.FormatInt(j.Distinct, 10)}, {"smallest", j.Min.String()}, {"largest", j.Max.String()}, {"duplicates", strconv.FormatInt(j.Duplicates, 10)}}
		for _, r := range j.First {
			rows = append(rows, []string{"duplicate", r.Number.String(), times(r.Times)})
		}
		if a.tag != "" {
			rows = append(rows, []string{"mark", j.Mark.String()})
		}
		for _, row := range rows {
			if err == nil {
				err = out.add(nil, row...)
			}
		}
	}
	if err == nil {
		err = out.flush()
	}
	switch {
	case err != nil:
		return err
	case j.Duplicates > 0:
		return fmt.Errorf("%d numbers occur more than once", j.Duplicates)
	case a.tag != "" && j.Rows > 0 && hapax.ID(found.Highest) >= j.Mark:
		return fmt.Errorf("the column holds %d, at or above the mark %d of tag %q", found.Highest, j.Mark, a.tag)
	}
	return nil
}
