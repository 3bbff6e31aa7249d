// Command bench measures hapax beside a bare atomic add and beside other
// issuers, in one run, and prints a table of ratios.
//
// A shared machine's speed changes from second to second. So every measurement
// is taken right after one of the bare add, in the loop and behind a call, several
// rounds long, and what counts is the median of the ratios.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/hapax-id/hapax/bench/internal/page"
)

func main() {
	quick := flag.Bool("quick", false, "a short run, to see that everything works")
	rounds := flag.Int("rounds", 5, "how often each pair is measured, 1 to 100")
	each := flag.Duration("time", 250*time.Millisecond, "length of one measurement, 1ms to 1m")
	out := flag.String("o", "", "also write the report into this page")
	flag.Parse()
	if *quick {
		*rounds, *each = 1, 20*time.Millisecond
	}
	if *rounds < 1 || *rounds > 100 || *each < time.Millisecond || *each > time.Minute {
		fmt.Fprintln(os.Stderr, "bench: -rounds is 1 to 100, -time is 1ms to 1m")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *rounds, *each, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, rounds int, each time.Duration, out string) error {
	list, err := contenders(ctx)
	if err != nil {
		return err
	}
	rows, err := compare(ctx, list, rounds, each)
	if err != nil {
		return err
	}
	text := report(ctx, rows, rounds, each)
	if _, err := os.Stdout.Write(text); err != nil || out == "" {
		return err
	}
	picture := filepath.Join(filepath.Dir(out), "pictures", "bench-program.svg")
	return errors.Join(page.Put(out, "program", text), page.Draw(picture, "Nanoseconds for a number from one goroutine (logarithmic)", bars(rows)))
}

// row holds the measurements of one contender.
type row struct {
	contender
	one, all pair
}

// pair holds what was measured of one contender, and its ratios to the bare add
// of the same moment.
type pair struct {
	sample
	bare, called float64 // to the add in the loop, and to the add behind a call
}

// compare measures every contender beside the bare add, from one goroutine and
// from one on each core.
func compare(ctx context.Context, list []contender, rounds int, each time.Duration) ([]row, error) {
	var add bareAdd
	samples := make([][2][]pair, len(list))
	for range rounds {
		for i, c := range list {
			for j, goroutines := range []int{1, runtime.GOMAXPROCS(0)} {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				bare := measure(goroutines, each/2, add.worker)
				called := measure(goroutines, each/2, add.calledWorker)
				s := measure(goroutines, each, c.worker)
				samples[i][j] = append(samples[i][j], pair{s, s.wall / bare.wall, s.wall / called.wall})
			}
		}
	}
	rows := make([]row, len(list))
	for i, c := range list {
		rows[i] = row{c, median(samples[i][0]), median(samples[i][1])}
		if err := c.close(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return rows, nil
}

// median takes the median of each value on its own.
func median(samples []pair) pair {
	of := func(value func(pair) float64) float64 {
		values := make([]float64, len(samples))
		for i, s := range samples {
			values[i] = value(s)
		}
		slices.Sort(values)
		n := len(values)
		return (values[(n-1)/2] + values[n/2]) / 2
	}
	return pair{
		sample: sample{
			wall:   of(func(p pair) float64 { return p.wall }),
			cpu:    of(func(p pair) float64 { return p.cpu }),
			allocs: of(func(p pair) float64 { return p.allocs }),
		},
		bare:   of(func(p pair) float64 { return p.bare }),
		called: of(func(p pair) float64 { return p.called }),
	}
}
