// Package issuers keeps one segment issuer for each tag of a foreign table, and
// follows the table as rows come and go.
package issuers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
)

// A Table grants segments and tells which tags there are.
type Table interface {
	hapax.SegmentStore
	// Tag returns one tag. ErrTagNotFound.
	Tag(ctx context.Context, name string) (hapax.Tag, error)
}

const (
	refreshEvery = 60 * time.Second // how soon a row that is gone shows
	unknownFor   = time.Second      // how long the answer "no such row" is kept
	maxUnknown   = 10_000           // names for which it is kept
	sealWithin   = 5 * time.Second
)

// Options tune a Set.
type Options struct {
	// Refresh is how often the tags in use are looked up, so that one whose row
	// was removed stops; default 60 s.
	Refresh time.Duration

	// StoreTimeout bounds one answer of the table; default
	// hapax.DefaultStoreTimeout.
	StoreTimeout time.Duration

	// Observer, if set, receives the events of all issuers.
	Observer hapax.Observer
}

// A Set issues the numbers of all tags of a table. Its methods are safe for
// concurrent use.
type Set struct {
	table Table
	opts  Options
	life  context.Context
	stop  context.CancelFunc
	tasks sync.WaitGroup

	mu      sync.Mutex // guards the fields below; never held while waiting
	closed  bool
	entries map[string]*entry
	unknown map[string]time.Time // when the table said that there is no such row
}

// An entry is the issuer of one tag, or the attempt to make one.
type entry struct {
	ready chan struct{} // closed when seg or err is set
	seg   *hapax.Segment
	err   error

	mu        sync.Mutex  // guards the grants
	cur, next hapax.Grant // as the last events told
	step      int64
}

// New returns a set over a table. Close it.
func New(table Table, opts Options) *Set {
	if opts.Refresh <= 0 {
		opts.Refresh = refreshEvery
	}
	s := &Set{table: table, opts: opts, entries: map[string]*entry{}, unknown: map[string]time.Time{}}
	s.life, s.stop = context.WithCancel(context.Background())
	s.tasks.Go(s.refresh)
	return s
}

// Next issues one number of a tag. ErrTagNotFound, ErrTagDeleted; a call that
// waits fails when its context ends.
func (s *Set) Next(ctx context.Context, tag string) (hapax.ID, error) {
	var id hapax.ID
	err := s.with(ctx, tag, func(seg *hapax.Segment) (err error) {
		id, err = seg.Next(ctx)
		return err
	})
	return id, err
}

// TryNext issues one number of a tag if there is one without waiting, and reports
// whether there was.
func (s *Set) TryNext(tag string) (hapax.ID, bool) {
	s.mu.Lock()
	e := s.entries[tag]
	s.mu.Unlock()
	if e == nil {
		return 0, false
	}
	select {
	case <-e.ready:
	default:
		return 0, false
	}
	if e.seg == nil {
		return 0, false
	}
	return e.seg.TryNext()
}

// NextN fills dst with numbers of a tag in ascending order, and returns how many
// it issued.
func (s *Set) NextN(ctx context.Context, tag string, dst []hapax.ID) (int, error) {
	n := 0
	err := s.with(ctx, tag, func(seg *hapax.Segment) error {
		m, err := seg.NextN(ctx, dst[n:])
		n += m
		return err
	})
	return n, err
}

// with calls f with the tag's issuer, and once more with a new one where the
// issuer was dropped meanwhile.
func (s *Set) with(ctx context.Context, tag string, f func(*hapax.Segment) error) error {
	for again := false; ; again = true {
		e, err := s.get(tag)
		if err != nil {
			return err
		}
		select {
		case <-e.ready:
		default:
			select {
			case <-e.ready:
			case <-ctx.Done():
				return &hapax.WaitError{Cause: hapax.ErrStoreUnavailable, Context: context.Cause(ctx)}
			}
		}
		if e.err != nil {
			return e.err
		}
		err = f(e.seg)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, hapax.ErrTagDeleted), errors.Is(err, hapax.ErrTagNotFound):
			s.drop(tag, e)
			return err
		case errors.Is(err, hapax.ErrClosed) && !again:
			s.drop(tag, e)
			continue
		}
		return err
	}
}

// get returns the tag's entry, and starts making an issuer where there is none.
func (s *Set) get(tag string) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("%w: the set of issuers", hapax.ErrClosed)
	}
	if e := s.entries[tag]; e != nil {
		return e, nil
	}
	if err := hapax.ValidateName("tag", tag); err != nil {
		return nil, err
	}
	if at, ok := s.unknown[tag]; ok {
		if time.Since(at) < unknownFor {
			return nil, fmt.Errorf("%w: %q", hapax.ErrTagNotFound, tag)
		}
		delete(s.unknown, tag)
	}
	e := &entry{ready: make(chan struct{})}
	s.entries[tag] = e
	s.tasks.Go(func() { s.open(tag, e) })
	return e, nil
}

// open makes an issuer. It waits for the table as long as the set lives.
func (s *Set) open(tag string, e *entry) {
	seg, err := hapax.NewSegment(s.life, s.table, tag, hapax.SegmentOptions{
		NoCreate: true, StoreTimeout: s.opts.StoreTimeout, Observer: func(ev hapax.Event) { e.note(ev); s.tell(ev) },
	})
	e.seg, e.err = seg, err
	if err != nil {
		s.mu.Lock()
		delete(s.entries, tag)
		if errors.Is(err, hapax.ErrTagNotFound) {
			if len(s.unknown) >= maxUnknown {
				clear(s.unknown)
			}
			s.unknown[tag] = time.Now()
		}
		s.mu.Unlock()
	}
	close(e.ready)
}

func (s *Set) tell(ev hapax.Event) {
	if s.opts.Observer != nil {
		s.opts.Observer(ev)
	}
}

// note keeps the grants in hand, for Segments.
func (e *entry) note(ev hapax.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch ev.Kind {
	case hapax.EventGrant:
		e.next = ev.Grant
		if e.cur == (hapax.Grant{}) {
			e.cur, e.next = ev.Grant, hapax.Grant{}
		}
	case hapax.EventSwapped:
		if e.cur = ev.Grant; e.next == ev.Grant {
			e.next = hapax.Grant{}
		}
	case hapax.EventStepChanged:
		e.step = ev.Value
	}
}

// drop removes an entry and seals its issuer.
func (s *Set) drop(tag string, e *entry) {
	s.mu.Lock()
	mine := s.entries[tag] == e && !s.closed
	if mine {
		delete(s.entries, tag)
		s.tasks.Go(func() { seal(e) })
	}
	s.mu.Unlock()
}

func seal(e *entry) {
	<-e.ready
	if e.seg != nil {
		ctx, cancel := context.WithTimeout(context.Background(), sealWithin)
		defer cancel()
		_ = e.seg.Close(ctx) // nothing is handed back to a foreign table: there is nothing to lose
	}
}

// refresh looks for tags whose row is gone.
func (s *Set) refresh() {
	tick := time.NewTicker(s.opts.Refresh)
	defer tick.Stop()
	for {
		select {
		case <-s.life.Done():
			return
		case <-tick.C:
		}
		for tag, e := range s.snapshot() {
			if _, err := s.table.Tag(s.life, tag); errors.Is(err, hapax.ErrTagNotFound) || errors.Is(err, hapax.ErrTagDeleted) {
				s.drop(tag, e)
			}
		}
	}
}

// snapshot returns the entries that issue.
func (s *Set) snapshot() map[string]*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]*entry{}
	for tag, e := range s.entries {
		select {
		case <-e.ready:
			all[tag] = e
		default:
		}
	}
	return all
}

// A Segment is what one issuer has in hand.
type Segment struct {
	Tag       string
	Current   hapax.Grant // being issued from
	Next      hapax.Grant // fetched in advance; empty if there is none
	Remaining int64       // numbers not issued yet, of both
	Step      int64
}

// Segments returns what the issuers have in hand, in no particular order.
func (s *Set) Segments() []Segment {
	var all []Segment
	for tag, e := range s.snapshot() {
		if e.seg == nil {
			continue
		}
		st := e.seg.Stats()
		e.mu.Lock()
		all = append(all, Segment{Tag: tag, Current: e.cur, Next: e.next, Remaining: st.Remaining, Step: st.Step})
		e.mu.Unlock()
	}
	return all
}

// Close seals every issuer and waits for all that the set has started.
func (s *Set) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	entries := s.entries
	s.entries = map[string]*entry{}
	s.mu.Unlock()
	s.stop()
	for _, e := range entries {
		seal(e)
	}
	s.tasks.Wait()
	return nil
}

// A Row is one row of a foreign table, for pages that show it.
type Row struct {
	Tag     string
	MaxID   int64
	Step    int64
	Updated string // as the table has it; empty if it is not known
}
