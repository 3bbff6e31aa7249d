package testdb

import (
	"context"
	"sync"
	"testing"

	"github.com/hapax-id/hapax"
)

// Issuers issue the numbers of the tags of a table, with an issuer for each.
type Issuers struct {
	table hapax.SegmentStore

	mu  sync.Mutex // guards all
	all map[string]*hapax.Segment
}

// NewIssuers returns the issuers of a table, until the test ends.
func NewIssuers(t testing.TB, table hapax.SegmentStore) *Issuers {
	s := &Issuers{table: table, all: map[string]*hapax.Segment{}}
	t.Cleanup(func() {
		for _, seg := range s.all {
			_ = seg.Close(context.Background()) // a foreign table takes nothing back
		}
	})
	return s
}

func (s *Issuers) get(ctx context.Context, tag string) (*hapax.Segment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seg := s.all[tag]; seg != nil {
		return seg, nil
	}
	seg, err := hapax.NewSegment(ctx, s.table, tag, hapax.SegmentOptions{NoCreate: true})
	if err == nil {
		s.all[tag] = seg
	}
	return seg, err
}

// Next issues a number of a tag.
func (s *Issuers) Next(ctx context.Context, tag string) (hapax.ID, error) {
	seg, err := s.get(ctx, tag)
	if err != nil {
		return 0, err
	}
	return seg.Next(ctx)
}

// NextN fills dst with numbers of a tag.
func (s *Issuers) NextN(ctx context.Context, tag string, dst []hapax.ID) (int, error) {
	seg, err := s.get(ctx, tag)
	if err != nil {
		return 0, err
	}
	return seg.NextN(ctx, dst)
}
