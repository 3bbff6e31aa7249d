package audit

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"unsafe"
)

// A span is the keys from one to another, both inclusive.
type span struct{ from, upTo uint64 }

var everything = span{0, math.MaxUint64}

// spans cuts the keys of all runs into up to n spans that hold about as many
// each. Equal keys lie in one span.
func spans(list []run, n int) []span {
	var keys []uint64
	for _, r := range list {
		for _, p := range r {
			keys = append(keys, p.first)
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

// cursorBytes is how much memory a run takes at most while it is merged, with its part of
// a batch and the room to sort that.
const cursorBytes = int64(unsafe.Sizeof(cursor{})) + pageKeys*(8+binary.MaxVarintLen64+2*8)

// A cursor goes through the keys of a run within a span, a page at a time.
type cursor struct {
	file  io.ReaderAt
	pages run // still to come
	span  span
	raw   []byte
	keys  []uint64 // of the pages before those
	held  []uint64 // room for keys
}

// load unpacks pages until there are keys, or none come any more.
func (c *cursor) load() error {
	for len(c.keys) == 0 && c.more() {
		p := c.pages[0]
		c.pages = c.pages[1:]
		if p.last < c.span.from {
			continue
		}
		raw := p.packed
		if raw == nil {
			c.raw = slices.Grow(c.raw[:0], p.size)[:p.size]
			if _, err := c.file.ReadAt(c.raw, p.at); err != nil {
				return fmt.Errorf("temporary file: %w", err)
			}
			raw = c.raw
		}
		keys := append(slices.Grow(c.held[:0], p.keys), p.first)
		for key := p.first; len(keys) < p.keys; keys = append(keys, key) {
			more, n := binary.Uvarint(raw)
			if n <= 0 {
				break
			}
			key, raw = key+more, raw[n:]
		}
		if len(keys) != p.keys || len(raw) > 0 || keys[p.keys-1] != p.last {
			return fmt.Errorf("temporary file: a page at %d is not what was written; is the disk sound?", p.at)
		}
		c.held, c.keys = keys, within(keys, c.span)
	}
	return nil
}

// more reports whether keys may come after those that a cursor has.
func (c *cursor) more() bool { return len(c.pages) > 0 && c.pages[0].first <= c.span.upTo }

// within returns those of ascending keys that lie in a span.
func within(keys []uint64, s span) []uint64 {
	keys = keys[:upTo(keys, s.upTo)]
	from, _ := slices.BinarySearch(keys, s.from)
	return keys[from:]
}

// upTo returns how many of ascending keys are not above one.
func upTo(keys []uint64, key uint64) int {
	if len(keys) == 0 || keys[len(keys)-1] <= key {
		return len(keys)
	}
	n, _ := slices.BinarySearch(keys, key+1) // no overflow: a key lies above
	return n
}

// merge gives the keys of runs that lie in a span in order, a batch at a time. It takes the
// smallest ones from all of them and sorts those: the processor's cache holds the batch, so
// that this is quicker than to compare the runs' next keys one by one.
func (s *runs) merge(ctx context.Context, list []run, part span, take func(keys []uint64) error) error {
	cursors := make([]*cursor, len(list))
	for i, r := range list {
		cursors[i] = &cursor{file: s.file, pages: r, span: part}
	}
	var batch, scratch []uint64
	for ctx.Err() == nil {
		// Of a run with pages to come, keys above the last unpacked one may be still to come.
		known := uint64(math.MaxUint64)
		for _, c := range cursors {
			if err := c.load(); err != nil {
				return err
			}
			if c.more() {
				known = min(known, c.keys[len(c.keys)-1])
			}
		}
		batch = batch[:0]
		for _, c := range cursors {
			n := upTo(c.keys, known)
			batch = append(batch, c.keys[:n]...)
			c.keys = c.keys[n:]
		}
		if len(batch) == 0 {
			return nil
		}
		scratch = slices.Grow(scratch[:0], len(batch))[:len(batch)]
		if err := take(sortKeys(batch, scratch)); err != nil {
			return err
		}
	}
	return ctx.Err()
}
