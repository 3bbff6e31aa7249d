package main

import (
	"runtime"
	"sync"
	"syscall"
	"time"
)

// work issues n numbers, one after the other, in a loop of its own: a call
// through a function value for each would cost as much as what is measured.
type work func(n int)

// sample is the cost of one number.
type sample struct {
	wall   float64 // ns of elapsed time, all goroutines together
	cpu    float64 // ns of processor time, of all threads
	allocs float64
}

// measure runs one worker in each goroutine for the given time, after a short
// warm-up.
func measure(goroutines int, d time.Duration, worker func() work) sample {
	loops := make([]work, goroutines)
	for i := range loops {
		loops[i] = worker()
	}
	issue(loops, d/5)
	runtime.GC()

	allocs, cpu, start := mallocs(), cpuTime(), time.Now()
	n := float64(issue(loops, d))
	wall := time.Since(start)
	return sample{
		wall:   float64(wall) / n,
		cpu:    float64(cpuTime()-cpu) / n,
		allocs: float64(mallocs()-allocs) / n,
	}
}

// issue runs the loops side by side for the given time and returns how many
// numbers they issued. It looks at the clock about a hundred times.
func issue(loops []work, d time.Duration) int {
	counts := make([]int, len(loops))
	var wg sync.WaitGroup
	for i, loop := range loops {
		wg.Go(func() {
			done, chunk := 0, 1024
			for start := time.Now(); time.Since(start) < d; {
				began := time.Now()
				loop(chunk)
				done += chunk
				if time.Since(began) < d/100 {
					chunk *= 2
				}
			}
			counts[i] = done
		})
	}
	wg.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return total
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// cpuTime returns the processor time that this process has used, in ns.
func cpuTime() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
