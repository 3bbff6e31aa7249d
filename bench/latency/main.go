// Command latency asks what programs ask for numbers: hapax in several ways, and what
// people use instead of it, from 50 connections. It finds how many requests a second each
// answers at most, and how late answers are at half of that, by an open loop: requests are
// made when they are due, whether or not the one before has been answered.
//
// The servers are processes of their own, on loopback, beside this one, which needs a part
// of the processor too; each takes its turn, several times, and medians count.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax/bench/internal/load"
	"github.com/hapax-id/hapax/bench/internal/page"
)

const connections = 50

func main() {
	quick := flag.Bool("quick", false, "a short run, to see that everything works")
	turns := flag.Int("turns", 4, "how many turns of each are measured, 1 to 100")
	each := flag.Duration("time", 2*time.Second, "length of one measurement, 100ms to 1m")
	out := flag.String("o", "", "also write the report into this page")
	flag.Parse()
	if *quick {
		*turns, *each = 1, 200*time.Millisecond
	}
	if *turns < 1 || *turns > 100 || *each < 100*time.Millisecond || *each > time.Minute {
		fmt.Fprintln(os.Stderr, "latency: -turns is 1 to 100, -time is 100ms to 1m")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *turns, *each, *out); err != nil {
		fmt.Fprintln(os.Stderr, "latency:", err)
		os.Exit(1)
	}
}

// A sample is what one turn found of a contender.
type sample struct {
	rate           float64
	p50, p99, p999 time.Duration
}

func run(ctx context.Context, turns int, each time.Duration, out string) error {
	dir, err := os.MkdirTemp("", "hapax-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // what stays is in the folder for temporary files
	var started servers
	defer started.stop()
	list, err := contenders(ctx, &started, dir)
	if err != nil {
		return err
	}
	for _, c := range list {
		if err := await(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	samples := make([][]sample, len(list))
	for turn := range turns + 1 {
		for i := range list {
			at := (i + turn) % len(list)
			s, err := measure(ctx, list[at], each)
			if err != nil {
				return fmt.Errorf("%s: %w", list[at].name, err)
			}
			if turn > 0 { // the first turn warms them up
				samples[at] = append(samples[at], s)
			}
		}
	}
	text := report(ctx, list, samples, turns, each)
	if _, err := os.Stdout.Write(text); err != nil || out == "" {
		return err
	}
	bars := make([]page.Bar, len(list))
	for i, c := range list {
		rate := median(samples[i], func(s sample) float64 { return s.rate })
		bars[i] = page.Bar{Name: strings.ReplaceAll(c.name, "`", ""), Value: rate, Label: fmt.Sprintf("%.0f k/s", rate/1000), Ours: strings.HasPrefix(c.name, "hapax")}
	}
	picture := filepath.Join(filepath.Dir(out), "pictures", "bench-latency.svg")
	return errors.Join(page.Put(out, "latency", text), page.Draw(picture, "Requests a second at full load, one number each", bars))
}

// await waits until a contender answers: a node of hapax joins a shared store first.
func await(ctx context.Context, c contender) error {
	call, end, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if err := call(ctx); err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
	}
}

func measure(ctx context.Context, c contender, each time.Duration) (s sample, err error) {
	callers := make([]load.Caller, connections)
	for i := range callers {
		call, end, err := c.connect(ctx)
		if err != nil {
			return s, err
		}
		defer end()
		callers[i] = call
	}
	if s.rate, err = load.Closed(ctx, callers, each); err != nil {
		return s, err
	}
	late, err := load.Open(ctx, callers, s.rate/2, each)
	s.p50, s.p99, s.p999 = load.Quantile(late, 0.5), load.Quantile(late, 0.99), load.Quantile(late, 0.999)
	return s, err
}

func report(ctx context.Context, list []contender, samples [][]sample, turns int, each time.Duration) []byte {
	var b bytes.Buffer
	b.WriteString(page.Conditions(ctx, "make bench-latency", fmt.Sprintf(
		"%d turns of %v at full load, and of %v at half of the rate that this found; medians. The client is one Go program on the same two cores, so rates are lower than `wrk` and `redis-benchmark` find.", turns, each, each)))
	b.WriteString("| who is asked | durable | requests/s | p50 ms at half load | p99 ms | p99.9 ms |\n|---|---|--:|--:|--:|--:|\n")
	for i, c := range list {
		fmt.Fprintf(&b, "| %s | %s | %.0f |", c.name, c.durable, median(samples[i], func(s sample) float64 { return s.rate }))
		for _, q := range []func(sample) time.Duration{
			func(s sample) time.Duration { return s.p50 },
			func(s sample) time.Duration { return s.p99 },
			func(s sample) time.Duration { return s.p999 },
		} {
			fmt.Fprintf(&b, " %.2f |", median(samples[i], func(s sample) float64 { return q(s).Seconds() * 1000 }))
		}
		b.WriteString("\n")
	}
	return b.Bytes()
}

func median(samples []sample, of func(sample) float64) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}
