package witness

import (
	"sync"

	"github.com/hapax-id/hapax"
)

// held is the keys of the latest segments that this node granted, by tag. Only
// what it granted itself can be handed back through it: the witness of the node
// that granted it must learn that the mark goes down.
type held struct {
	mu   sync.Mutex // guards keys
	keys map[string]heldKey
}

type heldKey struct {
	key hapax.GrantKey
	hi  int64
}

// note keeps the key of an allocation, unless a later one was noted already.
func (h *held) note(tag string, a hapax.Allocation) {
	if a.Key == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keys == nil {
		h.keys = map[string]heldKey{}
	}
	if a.Grant.Hi > h.keys[tag].hi {
		h.keys[tag] = heldKey{a.Key, a.Grant.Hi}
	}
}

// has reports whether the key is that of the latest segment of the tag that was
// granted here.
func (h *held) has(tag string, key hapax.GrantKey) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return key != "" && h.keys[tag].key == key
}
