package audit

import (
	"math"
	"slices"
)

// batchKeys is how many keys the merger hands on at a time.
const batchKeys = 1 << 10

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

// A head is the next key of a cursor.
type head struct {
	key uint64
	of  int
}

// A merger gives the keys of many cursors in order. It is a tree of losers: each
// node holds the cursor that lost there, so that a new key is compared only along
// the path to the root.
type merger struct {
	cursors []*cursor
	losers  []head // losers[0] is the winner
}

func newMerger(cursors []*cursor) *merger {
	m := &merger{cursors: cursors, losers: make([]head, len(cursors))}
	if len(cursors) > 0 {
		m.losers[0] = m.play(1)
	}
	return m
}

// play fills the part of the tree below a node and returns who won there.
func (m *merger) play(node int) head {
	if leaf := node - len(m.cursors); leaf >= 0 {
		return head{m.cursors[leaf].first(), leaf}
	}
	a, b := m.play(2*node), m.play(2*node+1)
	if b.key < a.key {
		a, b = b, a
	}
	m.losers[node] = b
	return a
}

// first returns the cursor's key, which is the largest value also where none is
// left.
func (c *cursor) first() uint64 {
	if len(c.keys) == 0 {
		return math.MaxUint64
	}
	return c.keys[0]
}

// next fills dst with the next keys and returns how many there were; 0 at the end.
func (m *merger) next(dst []uint64) (int, error) {
	if len(m.cursors) == 0 {
		return 0, nil
	}
	n := 0
	winner := m.losers[0]
	for n < len(dst) && winner.key != math.MaxUint64 {
		dst[n] = winner.key
		n++
		c := m.cursors[winner.of]
		if c.keys = c.keys[1:]; len(c.keys) == 0 {
			if err := c.load(); err != nil {
				return n, err
			}
		}
		winner.key = c.first()
		for node := (winner.of + len(m.cursors)) / 2; node > 0; node /= 2 {
			if loser := &m.losers[node]; loser.key < winner.key {
				*loser, winner = winner, *loser
			}
		}
	}
	m.losers[0] = winner
	// What is left, if anything, is the largest value.
	for i := 0; n < len(dst) && i < len(m.cursors); {
		c := m.cursors[i]
		if len(c.keys) == 0 {
			i++
			continue
		}
		dst[n] = c.keys[0]
		n++
		if c.keys = c.keys[1:]; len(c.keys) == 0 {
			if err := c.load(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}
