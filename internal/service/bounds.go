package service

import (
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/define"
)

// maxBounds is how many tags' bounds are remembered.
const maxBounds = 10_000

// bounds remembers how much of a tag may be leased at once, so that a lease takes
// no more than one call on the store.
type bounds struct {
	mu   sync.Mutex // guards tags
	tags map[string]bound
}

type bound struct {
	step, most, delta int64
	def               define.Tag // what the tag says, as of when it was noted
}

// below returns how many of the tag's numbers lie below one.
func (b bound) below(n int64) int64 { return (max(0, n-b.def.Remainder) + b.delta - 1) / b.delta }

// note returns the bounds of a tag as the store has just told of it, and remembers them.
func (b *bounds) note(t hapax.Tag) bound {
	b.mu.Lock()
	defer b.mu.Unlock()
	noted := bound{t.Step, t.MaxStep, max(1, t.Delta), b.tags[t.Name].def.Now(t)}
	// All at once, since what is forgotten costs one question to the store each.
	if b.tags == nil || len(b.tags) >= maxBounds {
		b.tags = map[string]bound{}
	}
	b.tags[t.Name] = noted
	return noted
}

func (b *bounds) of(tag string) (bound, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, ok := b.tags[tag]
	return v, ok
}
