package audit

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"os"
	"slices"
	"sync"
)

// A run is sorted keys in pages of up to pageKeys. A page is the first key in 8
// bytes, how many follow in 2, the width in 1, and the differences in as many
// bytes each. Numbers that were issued one after another take little more than a
// byte each.
const (
	pageKeys   = 256
	pageHeader = 8 + 2 + 1
	maxPage    = pageHeader + 8*pageKeys
	indexEvery = 32 // pages
)

type run struct {
	memory []byte  // the pages and slack bytes; nil: they are in the file
	start  int64   // in the file
	size   int64   // of the pages
	count  int64   // of keys
	last   uint64  // the largest
	index  []place // of every indexEvery-th page
}

type place struct {
	key    uint64
	offset int64 // in the run
}

// runs keeps what is sorted: in memory as long as there is room, then in a
// temporary file.
type runs struct {
	dir string

	mu   sync.Mutex // guards what follows
	room int64      // for runs in memory
	most int        // runs that can be merged
	list []*run
	file *os.File
	size int64 // of the file
	gone bool  // the file has no name any more, so that nothing is left of it in any case
}

// add keeps sorted keys, of which there is at least one.
func (s *runs) add(keys []uint64) error {
	r := &run{count: int64(len(keys)), last: keys[len(keys)-1]}
	for page := range slices.Chunk(keys, pageKeys) {
		r.size += int64(pageHeader + (len(page)-1)*pageWidth(page))
	}
	if err := s.place(r); err != nil {
		return err
	}
	var buf []byte
	if r.memory != nil {
		buf = r.memory
	} else {
		buf = make([]byte, 0, 1<<18)
	}
	var written int64
	n := 0
	for page := range slices.Chunk(keys, pageKeys) {
		if n%indexEvery == 0 {
			r.index = append(r.index, place{page[0], written + int64(len(buf))})
		}
		n++
		if r.memory == nil && cap(buf)-len(buf) < maxPage+slack {
			if err := s.write(buf, r.start+written); err != nil {
				return err
			}
			written += int64(len(buf))
			buf = buf[:0]
		}
		buf = appendPage(buf, page)
	}
	if r.memory == nil {
		return s.write(buf, r.start+written)
	}
	r.memory = buf[:len(buf)+slack]
	return nil
}

// place finds room for a run.
func (s *runs) place(r *run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.list) == s.most {
		return fmt.Errorf("more than %d numbers need more memory than that; raise --memory", int64(s.most)*s.list[0].count)
	}
	s.list = append(s.list, r)
	if r.size <= s.room {
		s.room -= r.size
		r.memory = make([]byte, 0, r.size+slack)
		return nil
	}
	if s.file == nil {
		file, err := os.CreateTemp(s.dir, "hapax-audit-*")
		if err != nil {
			return fmt.Errorf("no temporary file: %w; name a directory with --temp", err)
		}
		s.file = file
		s.gone = os.Remove(file.Name()) == nil
	}
	r.start = s.size
	s.size += r.size
	return nil
}

func (s *runs) write(p []byte, at int64) error {
	if _, err := s.file.WriteAt(p, at); err != nil {
		return fmt.Errorf("temporary file: %w; name another directory with --temp, or raise --memory", err)
	}
	return nil
}

// close removes the temporary file.
func (s *runs) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
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

// pageWidth returns how many bytes the differences of a page need.
func pageWidth(page []uint64) int {
	var all uint64
	last := page[0]
	for _, k := range page {
		all |= k - last
		last = k
	}
	return (bits.Len64(all) + 7) / 8
}

// appendPage writes a page. There is room for it and for slack bytes.
func appendPage(dst []byte, page []uint64) []byte {
	width := pageWidth(page)
	dst = binary.LittleEndian.AppendUint64(dst, page[0])
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(page)))
	dst = append(dst, byte(width))
	n := len(dst)
	wide := dst[:n+(len(page)-1)*width+slack]
	last := page[0]
	for _, k := range page[1:] {
		binary.LittleEndian.PutUint64(wide[n:], k-last)
		last = k
		n += width
	}
	return wide[:n]
}

// A cursor goes through the keys of a run from one key to another.
type cursor struct {
	file   io.ReaderAt
	run    *run
	upTo   uint64 // inclusive
	offset int64  // in the run, of the bytes after those in buf
	buf    []byte // read, not yet unpacked
	room   []byte // for buf, where the run is in the file
	keys   []uint64
	held   []uint64 // room for keys
	ended  bool     // no more keys will come
}

// newCursor returns a cursor at the first key that is not below from, which holds
// so many keys.
func newCursor(s *runs, r *run, from, upTo uint64, readAhead, hold int) (*cursor, error) {
	c := &cursor{file: s.file, run: r, upTo: upTo, held: make([]uint64, hold+pageKeys)}
	// Keys that equal from may stand before the page that begins with it.
	i, _ := slices.BinarySearchFunc(r.index, from, func(p place, key uint64) int {
		if p.key < key {
			return -1
		}
		return 1
	})
	c.offset = r.index[max(i-1, 0)].offset
	if r.memory == nil {
		c.room = make([]byte, max(readAhead, maxPage+slack))
	} else {
		c.buf = r.memory[c.offset:]
		c.offset = r.size
	}
	for {
		if err := c.hold(1); err != nil || c.ended || c.keys[len(c.keys)-1] >= from {
			skip, _ := slices.BinarySearch(c.keys, from)
			c.keys = c.keys[skip:]
			return c, err
		}
		c.keys = nil
	}
}

// hold unpacks pages until there are n keys or no more will come.
func (c *cursor) hold(n int) error {
	if c.ended || len(c.keys) >= n {
		return nil
	}
	c.keys = c.held[:copy(c.held, c.keys)]
	for !c.ended && len(c.keys) < n {
		if err := c.load(); err != nil {
			return err
		}
	}
	return nil
}

// load unpacks the next page behind the keys.
func (c *cursor) load() error {
	if len(c.buf) < maxPage+slack && c.offset < c.run.size {
		if err := c.fill(); err != nil {
			return err
		}
	}
	if len(c.buf) < pageHeader+slack {
		c.ended = true
		return nil
	}
	key := binary.LittleEndian.Uint64(c.buf)
	if key > c.upTo {
		c.ended = true
		return nil
	}
	n := int(binary.LittleEndian.Uint16(c.buf[8:]))
	width := int(c.buf[10])
	if n < 1 || n > pageKeys || width > 8 || len(c.buf) < pageHeader+(n-1)*width+slack {
		return fmt.Errorf("temporary file: a page at %d is not what was written; is the disk sound?", c.run.start+c.offset)
	}
	keys := c.held[len(c.keys) : len(c.keys)+n]
	keys[0] = key
	mask := uint64(1)<<(8*width) - 1 // all bits for a width of 8
	at := c.buf[pageHeader:]
	for i := range keys[1:] {
		key += binary.LittleEndian.Uint64(at) & mask
		keys[i+1] = key
		at = at[width:]
	}
	c.buf = at
	if key > c.upTo {
		n, _ = slices.BinarySearch(keys, c.upTo+1) // no overflow: a key lies above
		c.ended = true
	}
	c.keys = c.held[:len(c.keys)+n]
	return nil
}

// fill reads more of the run from the file.
func (c *cursor) fill() error {
	n := 0
	if len(c.buf) > 0 {
		n = copy(c.room, c.buf[:len(c.buf)-slack])
	}
	more := min(int64(len(c.room)-slack-n), c.run.size-c.offset)
	if _, err := c.file.ReadAt(c.room[n:n+int(more)], c.run.start+c.offset); err != nil {
		return fmt.Errorf("temporary file: %w", err)
	}
	c.offset += more
	c.buf = c.room[:n+int(more)+slack]
	return nil
}
