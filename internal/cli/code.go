package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
)

// issuedJSON are numbers of one period and the texts that show them, as --json prints them.
type issuedJSON struct {
	IDs    []hapax.ID `json:"ids"`
	Codes  []string   `json:"codes"`
	Period string     `json:"period,omitempty"`
}

// printCodes prints codes, whose numbers are issued whether or not an error came after them.
func printCodes(cmd *cobra.Command, all []service.Issued, asJSON bool) error {
	w, objects := bufio.NewWriter(cmd.OutOrStdout()), newOutput(cmd, true)
	for _, issued := range all {
		switch {
		case len(issued.Codes) == 0:
		case asJSON:
			if err := objects.add(issuedJSON{issued.IDs, issued.Codes, issued.Period}); err != nil {
				return err
			}
		default:
			for _, code := range issued.Codes {
				if _, err := fmt.Fprintln(w, code); err != nil {
					return err
				}
			}
		}
	}
	return w.Flush()
}

// Codes implements target.
func (l *local) Codes(ctx context.Context, tag string, n int) ([]service.Issued, error) {
	ids, line, err := l.take(ctx, tag, n)
	if len(ids) == 0 {
		return nil, err
	}
	issued, codesErr := l.Service.Codes(ctx, tag, line, ids)
	return []service.Issued{issued}, errors.Join(err, codesErr)
}

// parseCodes prints what codes of a tag say.
func parseCodes(cmd *cobra.Command, where *targetFlags, tag string, args []string, asJSON bool) error {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return err
	}
	return where.with(cmd, reads, func(ctx context.Context, t target) error {
		out := newOutput(cmd, asJSON, "CODE", "NUMBER", "PERIOD", "FROM", "UNTIL", "KEY")
		bad := 0
		for in, err := range readArgs(args, cmd.InOrStdin()) {
			var p service.ParsedCode
			if err == nil {
				p, err = t.ParseCode(ctx, tag, in.text)
			}
			// A store that is away is no matter of this line: each that follows would fail, too.
			if errors.Is(err, hapax.ErrInvalidID) && in.line > 0 {
				bad++
				fmt.Fprintln(cmd.ErrOrStderr(), errorLine(fmt.Errorf("line %d: %s", in.line, hapax.Message(err))))
				continue
			}
			if err != nil {
				return errorAfter(out, err)
			}
			if err := out.add(p, p.Code, p.ID.String(), dash(p.Period), instant(p.From), instant(p.Until), dash(p.Key)); err != nil {
				return err
			}
		}
		if bad > 0 {
			return errorAfter(out, usagef("%d lines of standard input hold no code of this tag", bad))
		}
		return out.flush()
	})
}

func instant(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(time.RFC3339)
}
