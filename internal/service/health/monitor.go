// Package health tells how a service is: whether it can issue, for how long, what an operator
// should look at, and its metrics. It reads what the service tells of itself, and changes none
// of it.
package health

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/service/watch"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/strategy"
)

// A Source is what a service tells of itself, as of the call.
type Source interface {
	// Tags yields the tags in use, in no order.
	Tags() iter.Seq[Tag]
	// Pools returns the worker pools in use, in no order.
	Pools() []Pool
	// Layout returns a pool's layout as far as it is known, and the zero Layout for no pool.
	Layout(pool string) hapax.Layout
	// Holders returns the running leases on worker IDs that were granted to others.
	Holders() []hapax.Lease
	// Usage returns the largest counts of plugins, up to so many.
	Usage(most int) []api.Usage
	// Findings returns what the service has noticed by itself.
	Findings(now time.Time) []Condition
}

// A Tag is one in use.
type Tag struct {
	Name     string
	Labelled bool // has metrics under its own name

	IsSegment bool // it counts; the next four are of such a tag
	Stats     hapax.SegmentStats
	Last      hapax.ID // the number issued last; 0: none yet
	Delta     int64
	Rate      *Rate

	Pool string // of a snowflake tag

	// Own is the issuer of a strategy that the program brings, and Issued its count.
	Own    hapax.Issuer
	Issued int64
}

// A Pool is a worker pool in use.
type Pool struct {
	Name     string
	Labelled bool // has metrics under its own name
	Stats    hapax.SnowflakeStats
	Spare    time.Duration             // granted, and not handed to the issuer yet
	Census   map[api.WorkerState]int64 // worker IDs in each state; nil: not counted yet
	Use      *Use                      // how these change; nil: not known yet
	Starts   *int64                    // how many are left where each uses up a worker ID; else nil
}

// A DeclaredTag is one of the configuration.
type DeclaredTag struct {
	IsSegment  bool
	ReaderBits int // how many bits the narrowest reader of its numbers keeps; 0: all
}

// A DeclaredPool is one of the configuration.
type DeclaredPool struct {
	Fields  map[string]int64 // the values of the layout's constant fields
	Refuses bool             // issues nothing while the wall clock is behind
}

// Options are what a Monitor looks at, and how it judges.
type Options struct {
	Source     Source
	Store      *watch.Store
	Counters   *Counters
	Strategies *strategy.Registry
	Ledger     *ledger.Ledger // may be nil
	Log        *slog.Logger

	Tags      map[string]DeclaredTag
	Pools     map[string]DeclaredPool
	PoolNames []string // of Pools, and the default pool

	Beside  map[string]*Monitor // of foreign systems in the same server, by name
	OneShot bool                // it has no alarms and no plugins of its own

	AlarmBudget   time.Duration               // below which outage budget there is an alarm
	AlarmForecast time.Duration               // how near an end is that there is an alarm
	Conditions    func(time.Time) []Condition // what the server knows; may be nil
	Notify        func(a api.Alarm, raised bool)
	Observer      func(hapax.Event)
	StoreWarnings func() map[string]int
	Adopt         string // the command about a tag that a foreign table refuses, with AdoptKey

	Now   func() time.Time
	Looks time.Duration // between two looks for alarms; default LookEvery

	Life  context.Context     // ends with the service
	Spawn func(f func()) bool // starts what ends with Life, unless the service is closed
}

// A Monitor tells how a service is.
type Monitor struct {
	opts Options

	alarms   alarms
	outlooks outlooks
	failures map[string]failing // of plugins; lookOut's alone
	leaving  atomic.Bool        // Readiness says that this is not to be called any more

	mu     sync.Mutex    // guards asking; never held while waiting
	asking chan struct{} // closed when the store has answered Readiness; nil: it is not asked
}

// New returns the monitor of a service. It looks out for alarms until the service's life ends,
// but for one that is OneShot.
func New(opts Options) *Monitor {
	m := &Monitor{opts: opts, failures: map[string]failing{}}
	if !opts.OneShot {
		opts.Spawn(m.lookOut)
	}
	return m
}

// GuardOf returns the guard around a store; nil where there is none.
func GuardOf(store *watch.Store) *witness.Guarded {
	g, _ := store.Store.(*witness.Guarded)
	return g
}

// Trouble returns what keeps a store from granting, as far as is known.
func Trouble(store *watch.Store) error {
	if g := GuardOf(store); g != nil {
		if st := g.Status(); !st.Ready() {
			return statusError{st}
		}
	}
	return store.Trouble()
}
