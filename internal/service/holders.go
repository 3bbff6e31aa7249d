package service

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
)

// holders are the leases on worker IDs that this node granted to others, as far as it
// knows: another node may have extended or ended them.
type holders struct {
	mu sync.Mutex // guards of
	of map[heldWorker]hapax.Lease
}

type heldWorker struct {
	pool string
	id   int64
}

// note keeps a lease that was granted or extended.
func (h *holders) note(l hapax.Lease) {
	if hapax.ValidateName("holder", l.Holder) != nil {
		return // what extends a lease may bring any text
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	key := heldWorker{l.Pool, l.Worker}
	switch old, ok := h.of[key]; {
	case ok && (old.Token > l.Token || old.Token == l.Token && old.Expires.After(l.Expires)): // an answer that came late
	case h.of == nil:
		h.of = map[heldWorker]hapax.Lease{key: l}
	default:
		h.of[key] = l
	}
}

// end forgets a lease that was sealed or lost.
func (h *holders) end(l hapax.Lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if key := (heldWorker{l.Pool, l.Worker}); h.of[key].Token == l.Token {
		delete(h.of, key)
	}
}

// running forgets what has expired and returns the rest, by pool and worker ID.
func (h *holders) running(now time.Time) []hapax.Lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.of, func(_ heldWorker, l hapax.Lease) bool { return !l.Expires.After(now) })
	return slices.SortedFunc(maps.Values(h.of), func(a, b hapax.Lease) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Worker, b.Worker))
	})
}
