package audit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"os"
	"slices"
	"sort"
	"sync"
)

// pageKeys is how many keys a page has at most.
const pageKeys = 1 << 12

// mergeBytes is how much memory a run takes at most while it is merged: a page that is held
// over, another one, and the room to sort both.
const mergeBytes = 2 * 2 * 8 * pageKeys

// A run is ascending keys.
type run []page

// A page is ascending keys of a run: the first one, and the difference of each to the one
// before it as a varint. Numbers that were issued one after another take a byte each.
type page struct {
	first, last uint64
	packed      []byte // nil: in the file
	at          int64  // in the file
	size        int
	sum         uint32 // checksum of the packed numbers
}

// runs keeps what is sorted: in memory as long as there is room, then in a temporary file.
type runs struct {
	dir string

	mu   sync.Mutex // guards what follows
	room int64      // for pages in memory
	list []run
	file *os.File
	size int64 // of the file
	gone bool  // the file has no name any more, so that nothing is left of it in any case
}

// add keeps ascending keys as a run of their own.
func (s *runs) add(keys []uint64) error {
	var r run
	err := s.extend(&r, keys)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, r)
	return err
}

// extend adds keys to a run, none of them below those it has.
func (s *runs) extend(r *run, keys []uint64) error {
	for part := range slices.Chunk(keys, pageKeys) {
		packed := make([]byte, 0, pageKeys*2)
		for i, k := range part[1:] {
			packed = binary.AppendUvarint(packed, k-part[i])
		}
		p := page{first: part[0], last: part[len(part)-1], size: len(packed), sum: crc32.ChecksumIEEE(packed)}
		if err := s.keep(&p, packed); err != nil {
			return err
		}
		*r = append(*r, p)
	}
	return nil
}

// keep finds room for a page.
func (s *runs) keep(p *page, packed []byte) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int64(p.size) <= s.room {
		s.room -= int64(p.size)
		p.packed = bytes.Clone(packed) // as long as it is: packed has room for more
		return nil
	}
	if s.file == nil {
		if s.file, err = os.CreateTemp(s.dir, "hapax-audit-*"); err != nil {
			return fmt.Errorf("no temporary file: %w; name a directory with --temp", err)
		}
		s.gone = os.Remove(s.file.Name()) == nil
	}
	p.at = s.size
	s.size += int64(p.size)
	if _, err = s.file.WriteAt(packed, p.at); err != nil {
		return fmt.Errorf("temporary file: %w; name another directory with --temp, or raise --memory", err)
	}
	return nil
}

// narrowed returns the same keys in at most so many runs, merged in as many passes as that
// takes; meanwhile the temporary file takes twice its size. What it does not return is closed.
func (s *runs) narrowed(ctx context.Context, most int) (*runs, error) {
	for len(s.list) > most {
		next := &runs{dir: s.dir, room: s.room}
		var err error
		for group := range slices.Chunk(s.list, most) {
			var merged run
			if err == nil {
				err = s.merge(ctx, group, span{0, math.MaxUint64}, func(keys []uint64) error { return next.extend(&merged, keys) })
			}
			next.list = append(next.list, merged)
		}
		if err = errors.Join(err, s.close()); err != nil {
			return next, err
		}
		s = next
	}
	return s, nil
}

// close removes the temporary file.
func (s *runs) close() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	if !s.gone {
		err = os.Remove(s.file.Name())
	}
	s.file = nil
	return err
}

// A span is the keys from one to another, both inclusive.
type span struct{ from, upTo uint64 }

// spans cuts the keys of all runs into up to n spans that hold about as many
// each. Equal keys lie in one span.
func spans(list []run, n int) []span {
	var keys []uint64
	for _, p := range slices.Concat(list...) {
		keys = append(keys, p.first)
	}
	slices.Sort(keys)
	found := []span{{0, math.MaxUint64}}
	for i := 1; i < n; i++ {
		if last, cut := &found[len(found)-1], keys[i*len(keys)/n]; cut > last.from {
			last.upTo = cut - 1
			found = append(found, span{cut, math.MaxUint64})
		}
	}
	return found
}

// unpack adds those keys of a page that lie in a span.
func (s *runs) unpack(keys []uint64, p page, part span) ([]uint64, error) {
	raw := p.packed
	if raw == nil {
		raw = make([]byte, p.size)
		if _, err := s.file.ReadAt(raw, p.at); err != nil {
			return nil, fmt.Errorf("temporary file: %w", err)
		}
		if crc32.ChecksumIEEE(raw) != p.sum {
			return nil, fmt.Errorf("temporary file: a page at %d is not what was written; is the disk sound?", p.at)
		}
	}
	for key := p.first; ; {
		if part.from <= key && key <= part.upTo {
			keys = append(keys, key)
		}
		if len(raw) == 0 {
			return keys, nil
		}
		more, n := binary.Uvarint(raw)
		key, raw = key+more, raw[n:]
	}
}

// merge gives the keys of runs that lie in a span in order, a batch at a time: it unpacks pages in
// the order of their first keys, sorts what it has, and gives what is not above the next page's
// first key. Since the pages of a run lie one behind the other, each run has at most one of which
// keys are held over.
func (s *runs) merge(ctx context.Context, list []run, part span, take func(keys []uint64) error) (err error) {
	var pages []page
	for _, r := range list {
		for _, p := range r {
			if part.from <= p.last && p.first <= part.upTo {
				pages = append(pages, p)
			}
		}
	}
	slices.SortFunc(pages, func(a, b page) int { return cmp.Compare(a.first, b.first) })
	room := min(2*len(list), len(pages)) * pageKeys
	keys, scratch := make([]uint64, 0, room), make([]uint64, room)
	pages = append(pages, page{first: math.MaxUint64}) // has no key, and all keys are to be given before it
	for len(pages) > 1 && err == nil && ctx.Err() == nil {
		n := min(len(list), len(pages)-1) // fewer would have more of the keys sorted once more
		for _, p := range pages[:n] {
			if keys, err = s.unpack(keys, p, part); err != nil {
				return err
			}
		}
		pages = pages[n:]
		sorted := sortKeys(keys, scratch[:len(keys)])
		end := sort.Search(len(sorted), func(i int) bool { return sorted[i] > pages[0].first })
		err = take(sorted[:end])
		keys = append(keys[:0], sorted[end:]...)
	}
	return cmp.Or(err, ctx.Err())
}

// sortKeys sorts keys and returns the one of the two that holds them then. The scratch
// space is as long as the keys. It goes by digits, the lowest first, and only by the bits
// in which keys differ.
func sortKeys(keys, scratch []uint64) []uint64 {
	if slices.IsSorted(keys) {
		return keys
	}
	differ := uint64(0)
	for _, k := range keys {
		differ |= k ^ keys[0]
	}
	const digitBits, mask = 11, 1<<11 - 1
	for shift := bits.TrailingZeros64(differ); differ>>shift != 0; shift += digitBits {
		var at [mask + 1]int // how many keys have a digit, then where those are put
		for _, k := range keys {
			at[k>>(shift&63)&mask]++
		}
		sum := 0
		for i, n := range at {
			at[i], sum = sum, sum+n
		}
		for _, k := range keys {
			to := &at[k>>(shift&63)&mask]
			scratch[*to] = k
			*to++
		}
		keys, scratch = scratch, keys
	}
	return keys
}
