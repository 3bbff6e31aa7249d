// Command rpc measures hapax's RPC server and its Go client, each beside the
// least that could do the same, in one run: the client's numbers beside a bare
// atomic add, the server's calls beside a bare Connect handler that counts, and
// the bulk stream alone. Each server is a process of its own.
//
// The two of a pair take turns, several times, and what counts is the median of
// the ratios: a shared machine's speed changes from second to second.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/hapax-id/hapax/bench/internal/page"
)

func main() {
	quick := flag.Bool("quick", false, "a short run, to see that everything works")
	rounds := flag.Int("rounds", 10, "how often each pair is measured, 1 to 100")
	each := flag.Duration("time", 500*time.Millisecond, "length of one measurement, 10ms to 1m")
	out := flag.String("o", "", "also write the report into this page")
	at := flag.String("serve", "", "be the bare server at this address; what this program runs itself as")
	flag.Parse()
	if *quick {
		*rounds, *each = 1, 50*time.Millisecond
	}
	if *rounds < 1 || *rounds > 100 || *each < 10*time.Millisecond || *each > time.Minute {
		fmt.Fprintln(os.Stderr, "rpc: -rounds is 1 to 100, -time is 10ms to 1m")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *at != "" {
		err = serve(ctx, *at)
	} else {
		err = run(ctx, *rounds, *each, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "rpc:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, rounds int, each time.Duration, out string) (err error) {
	p, err := newParts(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if e := p.close(); err == nil {
			err = e
		}
	}()
	pairs, err := p.pairs(ctx)
	if err != nil {
		return err
	}
	for _, pair := range pairs { // connections are made, and steps adapt
		if err := new(result).add(ctx, pair, each); err != nil {
			return fmt.Errorf("%s: %w", pair.name, err)
		}
	}
	results := make([]result, len(pairs))
	for range rounds {
		for i, pair := range pairs {
			if err := results[i].add(ctx, pair, each); err != nil {
				return fmt.Errorf("%s: %w", pair.name, err)
			}
		}
	}
	streams, err := p.streams(ctx, rounds, each)
	if err != nil {
		return err
	}
	text := report(ctx, pairs, results, streams, rounds, each)
	if _, err := os.Stdout.Write(text); err != nil || out == "" {
		return err
	}
	return page.Put(out, "rpc", text)
}

// A pair is one thing of ours and the bare one beside it. They take turns.
type pair struct {
	name       string
	target     string
	unit       string // of the rates
	bare, ours measurement
}

// A measurement works for a while.
type measurement func(ctx context.Context, d time.Duration) (sample, error)

// A sample is what one measurement found.
type sample struct {
	rate      float64         // numbers a second
	latencies []time.Duration // of calls, if there were any; sorted
	cpu       float64         // µs of the server's processor time per call, if there were any
}

// A result collects what was found of one pair.
type result struct {
	ratios           []float64 // ours to bare, in rate
	bare, ours       []float64
	bareLat, oursLat []time.Duration
	bareCPU, oursCPU []float64
}

// add measures a pair once; the first one alternates.
func (r *result) add(ctx context.Context, p pair, d time.Duration) error {
	first, second := p.bare, p.ours
	swapped := len(r.ratios)%2 == 1
	if swapped {
		first, second = second, first
	}
	bare, err := first(ctx, d)
	if err != nil {
		return err
	}
	ours, err := second(ctx, d)
	if err != nil {
		return err
	}
	if swapped {
		bare, ours = ours, bare
	}
	r.ratios = append(r.ratios, ours.rate/bare.rate)
	r.bare, r.ours = append(r.bare, bare.rate), append(r.ours, ours.rate)
	r.bareCPU, r.oursCPU = append(r.bareCPU, bare.cpu), append(r.oursCPU, ours.cpu)
	r.bareLat, r.oursLat = append(r.bareLat, bare.latencies...), append(r.oursLat, ours.latencies...)
	return ctx.Err()
}

func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return s[len(s)/2]
}

// quantile returns the value below which a share of the durations lies.
func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(int(float64(len(d))*q), len(d)-1)]
}
