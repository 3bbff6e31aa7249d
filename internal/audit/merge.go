package audit

import (
	"math"
	"slices"
)

// batchKeys is about how many keys a merger sorts at a time.
const batchKeys = 1 << 15

// A span is the keys from one to another, both inclusive.
type span struct{ from, upTo uint64 }

// spans cuts the keys of all runs into up to n spans that hold about as many
// each. Equal keys lie in one span.
func spans(list []*run, n int) []span {
	var keys []uint64
	for _, r := range list {
		for _, p := range r.index {
			keys = append(keys, p.key)
		}
	}
	slices.Sort(keys)
	var found []span
	from := uint64(0)
	for i := 1; i < n; i++ {
		if cut := keys[i*len(keys)/n]; cut > from {
			found = append(found, span{from, cut - 1})
			from = cut
		}
	}
	return append(found, span{from, math.MaxUint64})
}

// A merger gives the keys of many cursors in order. It takes a batch of the smallest
// ones from all of them and sorts it: the processor's cache holds the batch, so that
// this is quicker than to compare the cursors' next keys one by one.
type merger struct {
	cursors []*cursor
	each    int // keys that a cursor holds at least
	batch   []uint64
	scratch []uint64
}

// heldKeys returns how many keys each of n cursors holds for a merger.
func heldKeys(n int) int {
	return max(batchKeys/max(n, 1), pageKeys)
}

func newMerger(cursors []*cursor) *merger {
	each := heldKeys(len(cursors))
	room := len(cursors) * (each + pageKeys)
	return &merger{cursors, each, make([]uint64, 0, room), make([]uint64, room)}
}

// next returns the next keys, until the next call; none at the end.
func (m *merger) next() ([]uint64, error) {
	// Of a cursor that has more than it holds, keys above the last held one may
	// be still to come.
	upTo := uint64(math.MaxUint64)
	for _, c := range m.cursors {
		if err := c.hold(m.each); err != nil {
			return nil, err
		}
		if !c.ended {
			upTo = min(upTo, c.keys[len(c.keys)-1])
		}
	}
	m.batch = m.batch[:0]
	for _, c := range m.cursors {
		n := len(c.keys)
		if n > 0 && c.keys[n-1] > upTo {
			n, _ = slices.BinarySearch(c.keys, upTo+1) // no overflow: a key lies above
		}
		m.batch = append(m.batch, c.keys[:n]...)
		c.keys = c.keys[n:]
	}
	return sortKeys(m.batch, m.scratch[:len(m.batch)]), nil
}
