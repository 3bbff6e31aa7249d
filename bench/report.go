package main

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/hapax-id/hapax/bench/internal/page"
)

// report returns the rows, measured at the commit, as a section of a page.
func report(ctx context.Context, rows []row, rounds int, each time.Duration) []byte {
	b := new(bytes.Buffer)
	cores := runtime.GOMAXPROCS(0)
	b.WriteString(page.Conditions(ctx, "make bench", fmt.Sprintf("%d rounds of %v each; medians. Where the load exceeds the cores, only CPU is to be trusted.", rounds, each)))
	b.WriteString(`"× bare" is the ratio to one ` + "`atomic.Int64.Add`" + ` per number in the loop itself, and "× call" to
that add behind a call that is not inlined: the least that a function can do which issues a
number. Both are measured right before from as many goroutines. A locked add waits for the
stores before it, such as a call's return address, and holds up the loads after it; so a
call costs more around it than elsewhere. Times are elapsed time divided by the numbers
issued by all goroutines together. CPU is the processor time of the whole process per
number, from one goroutine. "Of ceiling" is the rate from one goroutine as a share of what
the format allows; an issuer there waits for the clock, and its CPU tells what it costs.

`)
	fmt.Fprintf(b, "| issuer | ns/ID, 1 goroutine | × bare | × call | ns/ID, %d goroutines | × bare | × call | allocs/ID | CPU ns/ID | ceiling | of ceiling | note |\n", cores)
	fmt.Fprintf(b, "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n")
	for _, r := range rows {
		ceiling, share := "none", ""
		if r.ceiling > 0 {
			ceiling = rate(r.ceiling)
			share = fmt.Sprintf("%.1f %%", 1e11/r.one.wall/r.ceiling)
		}
		fmt.Fprintf(b, "| %s | %s | %.2f | %.2f | %s | %.2f | %.2f | %.0f | %s | %s | %s | %s |\n", r.name,
			ns(r.one.wall), r.one.bare, r.one.called, ns(r.all.wall), r.all.bare, r.all.called, r.one.allocs, ns(r.one.cpu), ceiling, share, r.note)
	}
	return b.Bytes()
}

// bars returns the rows as a chart's.
func bars(rows []row) []page.Bar {
	list := make([]page.Bar, len(rows))
	for i, r := range rows {
		list[i] = page.Bar{Name: strings.ReplaceAll(r.name, "`", ""), Value: r.one.wall, Label: ns(r.one.wall), Ours: strings.HasPrefix(r.name, "hapax")}
	}
	return list
}

// ns shows three digits or whole nanoseconds.
func ns(v float64) string {
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func rate(perSecond float64) string {
	switch {
	case perSecond >= 1e9:
		return fmt.Sprintf("%.2f G/s", perSecond/1e9)
	case perSecond >= 1e6:
		return fmt.Sprintf("%.2f M/s", perSecond/1e6)
	}
	return fmt.Sprintf("%.1f k/s", perSecond/1e3)
}
