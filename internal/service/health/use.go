package health

import (
	"time"

	"github.com/hapax-id/hapax/api"
)

// A Use is how a pool's worker IDs are used up.
type Use struct {
	free    int64   // worker IDs that nobody uses
	taken   float64 // how many fewer they get in a second
	started float64 // how many were used for the first or another time in a second
}

const (
	// useWindow is over how long the starts of a pool are counted.
	useWindow = 7 * 24 * time.Hour

	// The free worker IDs are counted every takenEvery, over takenWindow. Nodes take some
	// whenever a fleet is started or grows: only where the free ones got fewer in
	// takenTimes of these counts, and by at least one of takenShare, is that a rate.
	takenEvery  = 10 * time.Minute
	takenWindow = 24 * time.Hour
	takenTimes  = 3
	takenShare  = 24
)

// freeCount is how many worker IDs of a pool nobody used at a time.
type freeCount struct {
	at   time.Duration // of the clock that only goes forward
	free int64
}

// Counts are how many worker IDs of a pool were free in the last day, the oldest first. The
// zero value has none. They are for one goroutine.
type Counts []freeCount

// Used takes the worker IDs of the pool that were ever used, and how many are free, as of now
// and of a clock that only goes forward, and returns how they are used up.
func (c *Counts) Used(statuses []api.WorkerStatus, free int64, now time.Time, elapsed time.Duration) *Use {
	use := &Use{free: free, taken: c.taken(freeCount{elapsed, free})}
	// An hour at least: the starts of the last minutes alone are no rate.
	oldest := now.Add(-time.Hour)
	for _, st := range statuses {
		if last := st.Until; last.After(now.Add(-useWindow)) {
			use.started++
			if last.Before(oldest) {
				oldest = last
			}
		}
	}
	use.started /= now.Sub(oldest).Seconds()
	return use
}

// taken returns how many fewer worker IDs are free with each second.
func (c *Counts) taken(last freeCount) float64 {
	all := *c
	if n := len(all); n == 0 || last.at-all[n-1].at >= takenEvery {
		all = append(all, last)
	}
	for last.at-all[0].at > takenWindow {
		all = all[1:]
	}
	*c = all
	times := 0
	for i, count := range all[1:] {
		if count.free < all[i].free {
			times++
		}
	}
	first := all[0]
	gone := first.free - last.free
	if times < takenTimes || gone*takenShare < last.free {
		return 0
	}
	return float64(gone) / (last.at - first.at).Seconds()
}
