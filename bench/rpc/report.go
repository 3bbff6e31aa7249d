package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hapax-id/hapax/bench/internal/page"
)

// report returns what was found as a section of a page.
func report(ctx context.Context, pairs []pair, results []result, streams []stream, rounds int, each time.Duration) []byte {
	b := new(bytes.Buffer)
	b.WriteString(page.Conditions(ctx, "make bench-rpc", fmt.Sprintf("%d alternating pairs of %v each; medians.", rounds, each)))
	fmt.Fprint(b, `Each server is a process of its own, and the client another, on the same cores: a call's
cost is that of both ends. hapax issues from the embedded store; the bare handler only counts,
in a server of `+"`net/http`"+` with the same library and time-outs. CPU is the server's processor time
for a call.

| what | bare | ours | ours / bare, in rate | target |
|---|--:|--:|--:|---|
`)
	for i, p := range pairs {
		r := results[i]
		fmt.Fprintf(b, "| %s | %s | %s | %.2f | %s |\n", p.name, rate(median(r.bare), p.unit), rate(median(r.ours), p.unit), median(r.ratios), p.target)
	}
	fmt.Fprint(b, "\n| calls | CPU µs | bare CPU µs | p50 | p99 | p99.9 | bare p50 | bare p99 | bare p99.9 |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for i, p := range pairs {
		r := results[i]
		if len(r.oursLat) == 0 {
			continue
		}
		name, _, _ := strings.Cut(p.name, ", beside")
		fmt.Fprintf(b, "| %s | %.1f | %.1f |", name, median(r.oursCPU), median(r.bareCPU))
		for _, l := range [][]time.Duration{r.oursLat, r.bareLat} {
			for _, q := range []float64{0.5, 0.99, 0.999} {
				fmt.Fprintf(b, " %v |", quantile(l, q).Round(time.Microsecond))
			}
		}
		fmt.Fprintln(b)
	}
	fmt.Fprint(b, "\n| bulk stream of a segment tag, one caller | numbers/s | target |\n|---|--:|---|\n")
	for _, s := range streams {
		fmt.Fprintf(b, "| %s | %s | 10 M/s |\n", s.name, rate(median(s.rates), "M/s"))
	}
	return b.Bytes()
}

func rate(perSecond float64, unit string) string {
	if unit == "k/s" {
		return fmt.Sprintf("%.1f k/s", perSecond/1e3)
	}
	return fmt.Sprintf("%.1f M/s", perSecond/1e6)
}
