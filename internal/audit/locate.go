package audit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

// wanted are the numbers whose places are looked for.
type wanted struct {
	filter [1 << 12]uint64 // a bit for each hash that occurs
	left   atomic.Int64    // numbers that are still to be met

	mu   sync.Mutex // guards what follows
	byID map[uint64]*sought
}

type sought struct {
	places []foundAt // the first maxPlaces
	in     []*Finding
}

type foundAt struct {
	file int
	line int64
}

// hash spreads a key over the filter's bits.
func hash(key uint64) (word uint64, bit uint64) {
	h := key * 0x9E3779B97F4A7C15 >> (64 - 18)
	return h >> 6, 1 << (h & 63)
}

func (w *wanted) add(f *Findings) {
	for i := range f.List {
		key := keyOf(f.List[i].ID)
		s := w.byID[key]
		if s == nil {
			s = &sought{}
			w.byID[key] = s
			w.left.Add(f.List[i].Times)
			word, bit := hash(key)
			w.filter[word] |= bit
		}
		s.in = append(s.in, &f.List[i])
	}
}

var errLocated = errors.New("all places are known")

// locate reads the files once more to find the places of the numbers that are
// listed in the report.
func (a *audit) locate(ctx context.Context) error {
	w := &wanted{byID: map[uint64]*sought{}}
	for _, f := range []*Findings{&a.report.Duplicates, a.report.Misfits, a.report.Outside} {
		if f != nil {
			w.add(f)
		}
	}
	if len(w.byID) == 0 || !slices.Contains(a.again, true) {
		return nil
	}
	total := a.read.Swap(0)
	a.begin("locating", &a.read, total)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &reader{only: a.again, invalid: func(int, int64, []byte) {}, broken: func(int, int64, error) {}}
	err := a.readAll(ctx, r, func(blocks <-chan *block, done func(*block)) error {
		file := 0
		s := scanner{invalid: func(int64, []byte) {}, number: func(key uint64, line int64) {
			// The filter does not change any more: the cores look at it without the lock.
			if word, bit := hash(key); w.filter[word]&bit != 0 && w.found(key, file, line) {
				cancel(errLocated)
			}
		}}
		for b := range blocks {
			file = b.file
			if err := s.scan(b); err != nil {
				return err
			}
			done(b)
		}
		return nil
	})
	if err != nil && !errors.Is(context.Cause(ctx), errLocated) {
		return err
	}
	for _, s := range w.byID {
		for _, at := range s.places {
			for _, f := range s.in {
				f.Places = append(f.Places, Place{a.files[at.file], at.line})
			}
		}
	}
	return nil
}

// found notes a place of a key, and reports whether every place is known now.
func (w *wanted) found(key uint64, file int, line int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.byID[key]
	if s == nil {
		return false
	}
	at := foundAt{file, line}
	i, _ := slices.BinarySearchFunc(s.places, at, func(a, b foundAt) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line))
	})
	if i < maxPlaces {
		s.places = slices.Insert(s.places, i, at)
		s.places = s.places[:min(len(s.places), maxPlaces)]
	}
	return w.left.Add(-1) == 0
}
