package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/hapax-id/hapax/bench/internal/host"
)

// report writes the rows, measured at the commit, as a page of Markdown.
func report(w io.Writer, commit string, rows []row, rounds int, each time.Duration) error {
	b := bufio.NewWriter(w)
	cores := runtime.GOMAXPROCS(0)
	fmt.Fprintf(b, "# Benchmarks\n\n")
	fmt.Fprintf(b, "Written by `make bench`, which runs `go -C bench run . -o ../docs/benchmarks.md`.\n\n")
	fmt.Fprintf(b, "- Machine: %s, %d cores in use, %s/%s\n", host.Processor(), cores, runtime.GOOS, runtime.GOARCH)
	fmt.Fprintf(b, "- Go: %s\n- Commit: %s\n- Date: %s\n", runtime.Version(), commit, time.Now().UTC().Format(time.DateOnly))
	fmt.Fprintf(b, "- Measured: %d rounds of %v each; the table shows medians\n", rounds, each)
	fmt.Fprintf(b, "- Load average at the end: %s; where that exceeds the cores,\n  others had a part of them, and only CPU is to be trusted\n\n", host.Load())
	fmt.Fprintf(b, `"× bare" is the ratio to one `+"`atomic.Int64.Add`"+` per number in the loop itself, and "× call" to
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
	return b.Flush()
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

func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
