package driver

import (
	"container/list"
	"sync"
)

const (
	maxKept     = 32 << 20  // bytes of all rows that a handle keeps
	maxKeptNear = 256 << 10 // likewise, where a read takes no round trip
	maxValue    = 4 << 10   // bytes; a larger row is read before each change
	slotSize    = 600       // bytes that a slot takes besides its names and its value
)

// A held row is one as a handle knows it.
type held struct {
	Cell
	tag     Tag // what a tag's value says, where it was decoded
	decoded bool
}

// A slot is what a handle keeps about one key. Calls for the same key take
// turns, so that one handle never races against itself.
type slot struct {
	key   Key
	turn  chan struct{} // full while a call owns row and lost
	row   held
	lost  int           // changes lost to other handles, one after the other
	size  int           // guarded by kept.mu, as is place
	place *list.Element // nil: it was dropped
}

// kept holds the rows of a handle, up to most bytes. The least recently used is dropped first, and
// read again on its next use. A call that still holds a dropped row races against later calls; the
// conditional writes decide.
type kept struct {
	most int // bytes

	mu    sync.Mutex // guards what follows
	slots map[Key]*slot
	used  list.List // of *slot, the latest first
	bytes int
}

// slot returns the key's slot.
func (k *kept) slot(key Key) *slot {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.slots[key]; s != nil {
		k.used.MoveToFront(s.place)
		return s
	}
	if k.slots == nil {
		k.slots = map[Key]*slot{}
	}
	s := &slot{key: key, turn: make(chan struct{}, 1)}
	s.place = k.used.PushFront(s)
	k.slots[key] = s
	k.resizeLocked(s, 0)
	return s
}

// keep remembers a row, unless it is large. The caller owns the slot.
func (k *kept) keep(s *slot, row held) {
	if len(row.Value) > maxValue {
		row = held{}
	}
	s.row = row
	k.mu.Lock()
	defer k.mu.Unlock()
	// One that was dropped meanwhile is off the books already.
	if s.place != nil {
		k.resizeLocked(s, len(row.Value))
	}
}

// resizeLocked notes how long a slot's value is, and drops others until all have room.
func (k *kept) resizeLocked(s *slot, value int) {
	size := slotSize + len(s.key.Table) + len(s.key.Name) + value
	if s.row.decoded {
		size += value // the tag's own texts
	}
	k.bytes += size - s.size
	s.size = size
	// Not the last one, however large: a call is using it.
	for k.bytes > k.most && k.used.Len() > 1 {
		oldest := k.used.Remove(k.used.Back()).(*slot)
		oldest.place = nil
		k.bytes -= oldest.size
		delete(k.slots, oldest.key)
	}
}
