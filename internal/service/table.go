package service

import (
	"hash/maphash"
	"iter"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/strategy"
)

// An issuer is a segment, a pool's snowflake, the lines of periods, or what a strategy
// that the program brings has opened.
type issuer interface {
	hapax.Issuer
	TryNext() (hapax.ID, bool)
	TryNextN(dst []hapax.ID) int
}

// A line is a tag in use on this node.
type line struct {
	name     string
	issuer   issuer         // the segment, or the pool's snowflake
	segment  *hapax.Segment // nil for a snowflake tag
	pool     string         // of a snowflake tag
	code     *define.Code   // what shows its numbers; may be nil
	periods  *periods       // issues from a line for each period; nil: the tag has one
	plugged  *strategy.Line // the same with the plugins around it, which is what callers take from
	extra    string         // of the tag, as it was when the line was opened
	labelled bool           // has metrics under its own name
	dry      atomic.Bool    // it ebbs before a stop, and is not opened anew
	delta    int64          // of a segment tag
	rate     health.Rate    // how fast its numbers are taken

	issued int64         // numbers when they were last seen to grow; this and the next only for evict
	busy   time.Duration // when that was, after the service began; 0: not seen yet
}

const tableShards = 1024 // a writer copies one of them, and whoever looks at all lines looks at all of them

// tagTable holds the lines by name. Readers take no lock; a writer replaces the
// one shard that it changes.
type tagTable struct {
	seed   maphash.Seed
	shards [tableShards]atomic.Pointer[map[string]*line] // read by every issue; written under mu

	mu       sync.Mutex // serializes writers, and guards labelled
	labelled int
}

func (t *tagTable) init() {
	t.seed = maphash.MakeSeed()
	none := &map[string]*line{}
	for i := range t.shards {
		t.shards[i].Store(none)
	}
}

// find returns the line of a tag, or nil.
func (t *tagTable) find(name string) *line {
	return (*t.shards[maphash.String(t.seed, name)%tableShards].Load())[name]
}

// findBytes is find for a name in a buffer.
func (t *tagTable) findBytes(name []byte) *line {
	return (*t.shards[maphash.Bytes(t.seed, name)%tableShards].Load())[string(name)]
}

// add puts a line into the table.
func (t *tagTable) add(l *line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Lines of periods come and go, and would take the names that metrics have room for.
	if l.pool == "" && l.periods == nil && l.name != health.Others && !define.IsPeriodLine(l.name) && t.labelled < health.MaxLabelled {
		l.labelled = true
		t.labelled++
	}
	shard := &t.shards[maphash.String(t.seed, l.name)%tableShards]
	next := maps.Clone(*shard.Load())
	next[l.name] = l
	shard.Store(&next)
}

// remove takes a line out of the table, and reports whether it was there.
func (t *tagTable) remove(l *line) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	shard := &t.shards[maphash.String(t.seed, l.name)%tableShards]
	// A newer line may have the name by now, which goes on.
	if (*shard.Load())[l.name] != l {
		return false
	}
	next := maps.Clone(*shard.Load())
	delete(next, l.name)
	shard.Store(&next)
	if l.labelled {
		t.labelled--
	}
	return true
}

// all yields the lines, in no order.
func (t *tagTable) all() iter.Seq[*line] {
	return func(yield func(*line) bool) {
		for i := range t.shards {
			for _, l := range *t.shards[i].Load() {
				if !yield(l) {
					return
				}
			}
		}
	}
}
