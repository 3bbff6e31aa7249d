package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
)

// A Store carries every role. Servers and tools ask for it; the issuers ask
// only for the role that they need.
type Store interface {
	hapax.SegmentStore
	TagStore
	hapax.WorkerStore
	PoolStore

	// StoreID returns the store's random identity, read from the store itself.
	StoreID(ctx context.Context) (string, error)

	// Ping reports whether the store can grant now.
	Ping(ctx context.Context) error

	// Close releases the store. It does not wait for calls in flight.
	Close() error
}

// Opened is implemented by stores that remember the identity they were opened with. Their calls
// fail with hapax.ErrStoreReplaced if another store is in its place by then.
type Opened interface {
	// OpenedID returns what StoreID did when the store was opened.
	OpenedID() string
}

// A Clock is implemented by stores that have a clock of their own, with which the issuers
// compare theirs.
type Clock interface {
	// StoreTime returns the store's current time.
	StoreTime(ctx context.Context) (time.Time, error)
}

// TagStore administers tags.
type TagStore interface {
	// Tag returns one tag, also when it is a tombstone. ErrTagNotFound.
	Tag(ctx context.Context, name string) (hapax.Tag, error)

	// Tags returns up to limit tags, tombstones among them, whose names come
	// after the given one, in the byte order of their names. One that cannot be read is of
	// hapax.KindUnreadable, and has a name alone.
	Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error)

	// UpdateTag changes a live tag (see TagUpdate) in one atomic step and returns
	// it as stored. ErrTagNotFound, ErrTagDeleted, ErrKindMismatch.
	UpdateTag(ctx context.Context, name string, u TagUpdate) (hapax.Tag, error)

	// DeleteTag leaves a tombstone, which keeps the mark, and returns it.
	// ErrTagNotFound, ErrTagDeleted.
	DeleteTag(ctx context.Context, name string) (hapax.Tag, error)
}

// PoolStore administers pools and their workers.
type PoolStore interface {
	// Pools returns the pools that exist, tombstones among them, by name.
	Pools(ctx context.Context) ([]Pool, error)

	// CreatePool freezes the pool's layout, and returns the pool as stored. A
	// tombstone is revived only with the layout it had. ErrLayoutMismatch.
	CreatePool(ctx context.Context, pool, layout string) (Pool, error)

	// DeletePool removes a pool none of whose worker IDs was ever used. Of any other it
	// leaves a tombstone, which keeps the workers' marks. It returns the
	// tombstone, or a deleted pool without a layout. ErrPoolNotFound.
	DeletePool(ctx context.Context, pool string) (Pool, error)

	// Workers returns the workers of a pool that were ever used, by worker ID.
	Workers(ctx context.Context, pool string) ([]Worker, error)

	// RetireWorker takes a worker ID out of use until the clock passes its mark:
	// the lease on it ends, and its mark stays. It is the way out for a mark that
	// a wrong clock has set years ahead. The holder, if it lives, may use up what
	// it was granted, and then finds its lease lost. ErrInvalidArgument for a
	// worker ID that was never used.
	RetireWorker(ctx context.Context, pool string, id int64) (Worker, error)
}

// A TagUpdate changes a segment tag; nil fields stay as they are.
type TagUpdate struct {
	Step, MinStep, MaxStep *int64
	Floor                  *int64 // what is granted from now on is at least this, whatever is handed back later
	Extra                  *string

	// ExtraWas is what the Extra was when the new one was made of it: where somebody else has
	// changed it since, the tag stays as it is, and the error is ErrExtraChanged. Nil is no
	// condition. A client's server makes the condition by itself, and its store takes none.
	ExtraWas *string
}

// ErrExtraChanged is the error of an update whose ExtraWas is not what is stored.
var ErrExtraChanged = errors.New("driver: the tag's extra was changed meanwhile")

// A Pool is a set of worker IDs that share a layout, which is frozen when the
// pool is created.
type Pool struct {
	Name    string
	Layout  string // the canonical spec
	Deleted bool   // a tombstone: its workers keep their marks
}

// A Worker is one worker ID's timeline, as the store keeps it.
type Worker struct {
	Pool    string
	ID      int64     // the value of the layout's worker field
	Mark    int64     // high-water mark in ticks: the next grant starts here or later
	From    int64     // where the latest lease began, in ticks
	Token   int64     // fencing token: grows with every acquisition and seal; 0: never used
	Holder  string    // identity of the instance that holds it, or held it last
	Expires time.Time // when others may have it; in the past once sealed; precision 1 ms
}

// Retired reports whether the worker ID was taken out of use; see
// [PoolStore.RetireWorker].
func (w Worker) Retired() bool { return w.Token > 0 && w.Holder == "" }

// A Raised is one line whose mark is raised, in numbers or in ticks.
type Raised struct {
	Tag      string // of a tag
	Pool     string // of a worker
	Worker   int64
	From, To int64
}

// Foreign is what an operator's statement about the rows of a foreign table found and did.
type Foreign struct {
	Why     []string // why rows are refused
	Raised  []Raised // the rows that are raised, or would be
	Skipped []string // why a row was left as it is: it is not valid, and nothing is granted from it
}

// String names the line, and from where to where it is raised.
func (r Raised) String() string {
	line := fmt.Sprintf("tag %q", r.Tag)
	if r.Pool != "" {
		line = fmt.Sprintf("pool %q, worker %d", r.Pool, r.Worker)
	}
	return fmt.Sprintf("%s from %d to %d", line, r.From, r.To)
}
