// Package load asks servers: as fast as they answer, or at a rate of its own.
package load

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// A Caller makes one request and waits for its answer. Each has a connection of its own
// and is used by one goroutine at a time.
type Caller func(ctx context.Context) error

// Closed has every caller ask again as soon as it is answered, for a while, and returns
// the requests per second.
func Closed(ctx context.Context, callers []Caller, d time.Duration) (rate float64, err error) {
	began := time.Now()
	counts, errs := make([]int, len(callers)), make([]error, len(callers))
	var wg sync.WaitGroup
	for i, call := range callers {
		wg.Go(func() {
			for errs[i] == nil && time.Since(began) < d {
				errs[i] = call(ctx)
				counts[i]++
			}
		})
	}
	wg.Wait()
	all := 0
	for _, n := range counts {
		all += n
	}
	return float64(all) / time.Since(began).Seconds(), errors.Join(errs...)
}

// Open makes requests at a rate, whether or not earlier ones have been answered in time,
// and returns how long after the time at which it should have been made each was
// answered, sorted. So a server that stops for a while is charged with everything that
// came late because of it, and so is this program's own lateness.
func Open(ctx context.Context, callers []Caller, rate float64, d time.Duration) ([]time.Duration, error) {
	began := time.Now()
	every := time.Duration(float64(len(callers)) / rate * float64(time.Second))
	late, errs := make([][]time.Duration, len(callers)), make([]error, len(callers))
	var wg sync.WaitGroup
	for i, call := range callers {
		wg.Go(func() {
			due := began.Add(every * time.Duration(i) / time.Duration(len(callers)))
			for ; errs[i] == nil && due.Sub(began) < d; due = due.Add(every) {
				time.Sleep(time.Until(due))
				errs[i] = call(ctx)
				late[i] = append(late[i], time.Since(due))
			}
		})
	}
	wg.Wait()
	all := slices.Concat(late...)
	slices.Sort(all)
	return all, errors.Join(errs...)
}

// Quantile returns the duration below which a share of sorted ones lies.
func Quantile(sorted []time.Duration, share float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(float64(len(sorted))*share), len(sorted)-1)]
}
