package cli

import (
	"context"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// What signals do, by when they come: one that comes with another is the same, as some
// tools signal a process and then its group.
func TestSignals(t *testing.T) {
	const term, interrupt = syscall.SIGTERM, syscall.SIGINT
	type sent struct {
		at  time.Duration
		sig os.Signal
	}
	for name, c := range map[string]struct {
		duck    time.Duration
		sent    []sent
		left    time.Duration   // when it begins to leave; 0: never
		ended   time.Duration   // when it begins to stop
		another []time.Duration // when it is told to stop at once
	}{
		"the lame duck's time passes": {duck: time.Minute, sent: []sent{{1, term}}, left: 1, ended: 1 + time.Minute},
		"no lame duck":                {sent: []sent{{1, term}}, ended: 1},
		"an interrupt":                {duck: time.Minute, sent: []sent{{1, interrupt}}, ended: 1},
		"twice at once":               {duck: time.Minute, sent: []sent{{1, term}, {1 + oneSignal, term}}, left: 1, ended: 1 + time.Minute},
		"another one":                 {duck: time.Minute, sent: []sent{{1, term}, {2 + oneSignal, term}}, left: 1, ended: 2 + oneSignal},
		"an interrupt after it":       {duck: time.Minute, sent: []sent{{1, term}, {2 + oneSignal, interrupt}}, left: 1, ended: 2 + oneSignal},
		"twice, without a lame duck":  {sent: []sent{{1, term}, {2, term}, {3, interrupt}}, ended: 1},
		"a third": {
			duck: time.Minute, sent: []sent{{1, term}, {time.Second, term}, {time.Second + oneSignal, term}, {2 * time.Second, term}},
			left: 1, ended: time.Second, another: []time.Duration{2 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				signals := make(chan os.Signal, 2)
				var another []time.Duration
				ctx, leaving, end := heed(t.Context(), c.duck, signals, func() { another = append(another, time.Since(began)) })
				defer end()
				var left, ended time.Duration
				go func() {
					select {
					case <-leaving:
						left = time.Since(began)
					case <-ctx.Done():
					}
				}()
				defer context.AfterFunc(ctx, func() { ended = time.Since(began) })()
				for _, s := range c.sent {
					time.Sleep(s.at - time.Since(began))
					signals <- s.sig
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				if left != c.left || ended != c.ended || !slices.Equal(another, c.another) {
					t.Errorf("it leaves after %v, stops after %v, at once after %v; want %v, %v, %v", left, ended, another, c.left, c.ended, c.another)
				}
			})
		})
	}
}
