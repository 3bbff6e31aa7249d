package main

import (
	"bufio"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/hapax-id/hapax/bench/internal/host"
)

// report writes what was found as a page of Markdown.
func report(w io.Writer, pairs []pair, results []result, streams []stream, rounds int, each time.Duration) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "# Benchmarks of the RPC server and the Go client\n\n")
	fmt.Fprintf(b, "Written by `make bench-rpc`, which runs `go -C bench run ./rpc -o ../docs/benchmarks-rpc.md`.\n\n")
	fmt.Fprintf(b, "- Machine: %d cores, %s/%s, shared with other work\n- Go: %s\n- Date: %s\n", runtime.GOMAXPROCS(0), runtime.GOOS, runtime.GOARCH, runtime.Version(), time.Now().UTC().Format(time.DateOnly))
	fmt.Fprintf(b, "- Measured: %d alternating pairs of %v each; the tables show medians\n- Load average at the end: %s\n\n", rounds, each, host.Load())
	fmt.Fprint(b, `Client and servers run in one process, on loopback, so that a call's cost is that of both
ends. Our server is durable: it keeps a bolt store and a witness, and syncs both for every
grant. The bare handler only counts.

| what | bare | ours | ours / bare, in rate | target |
|---|--:|--:|--:|---|
`)
	for i, p := range pairs {
		r := results[i]
		fmt.Fprintf(b, "| %s | %s | %s | %.2f | %s |\n", p.name, rate(median(r.bare), p.unit), rate(median(r.ours), p.unit), median(r.ratios), p.target)
	}
	fmt.Fprint(b, "\n| calls | p50 | p99 | p99.9 | bare p50 | bare p99 | bare p99.9 |\n|---|--:|--:|--:|--:|--:|--:|\n")
	for i, p := range pairs {
		r := results[i]
		if len(r.oursLat) == 0 {
			continue
		}
		name, _, _ := strings.Cut(p.name, ", beside")
		fmt.Fprintf(b, "| %s |", name)
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
	return b.Flush()
}

func rate(perSecond float64, unit string) string {
	if unit == "k/s" {
		return fmt.Sprintf("%.1f k/s", perSecond/1e3)
	}
	return fmt.Sprintf("%.1f M/s", perSecond/1e6)
}
