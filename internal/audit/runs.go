package audit

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
)

// pageKeys is how many keys a page has at most: a cursor unpacks one at a time.
const pageKeys = 1 << 12

// A run is ascending keys.
type run []page

// A page is ascending keys of a run: the first one, and the difference of each to the one
// before it as a varint. Numbers that were issued one after another take a byte each.
type page struct {
	first, last uint64
	keys        int
	packed      []byte // nil: in the file
	at          int64  // in the file
	size        int
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
	r, err := s.extend(nil, keys)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, r)
	return nil
}

// extend returns a run with more keys, none of them below those it has.
func (s *runs) extend(r run, keys []uint64) (run, error) {
	packed := make([]byte, 0, pageKeys*2)
	for part := range slices.Chunk(keys, pageKeys) {
		p := page{first: part[0], last: part[len(part)-1], keys: len(part)}
		packed = packed[:0]
		for i, k := range part[1:] {
			packed = binary.AppendUvarint(packed, k-part[i])
		}
		p.size = len(packed)
		inMemory, err := s.place(&p)
		switch {
		case err != nil:
			return nil, err
		case inMemory:
			// As long as it is: packed has room for the widest keys, and is filled again.
			p.packed = append(make([]byte, 0, len(packed)), packed...)
		default:
			if _, err := s.file.WriteAt(packed, p.at); err != nil {
				return nil, fmt.Errorf("temporary file: %w; name another directory with --temp, or raise --memory", err)
			}
		}
		r = append(r, p)
	}
	return r, nil
}

// place finds room for a page.
func (s *runs) place(p *page) (inMemory bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int64(p.size) <= s.room {
		s.room -= int64(p.size)
		return true, nil
	}
	if s.file == nil {
		file, err := os.CreateTemp(s.dir, "hapax-audit-*")
		if err != nil {
			return false, fmt.Errorf("no temporary file: %w; name a directory with --temp", err)
		}
		s.file = file
		s.gone = os.Remove(file.Name()) == nil
	}
	p.at = s.size
	s.size += int64(p.size)
	return false, nil
}

// narrowed returns the same keys in at most so many runs, merged in as many passes as that
// takes; meanwhile the temporary file takes twice its size. What it does not return is closed.
func (s *runs) narrowed(ctx context.Context, most int) (*runs, error) {
	for len(s.list) > most {
		next := &runs{dir: s.dir, room: s.room}
		err := next.mergeGroups(ctx, s, most)
		if err = errors.Join(err, s.close()); err != nil {
			return next, err
		}
		s = next
	}
	return s, nil
}

// mergeGroups merges every so many runs of another into one.
func (s *runs) mergeGroups(ctx context.Context, other *runs, most int) error {
	for group := range slices.Chunk(other.list, most) {
		var merged run
		err := other.merge(ctx, group, everything, func(keys []uint64) (err error) {
			merged, err = s.extend(merged, keys)
			return err
		})
		if err != nil {
			return err
		}
		s.list = append(s.list, merged)
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
