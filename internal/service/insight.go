package service

import (
	"cmp"
	"slices"

	"github.com/hapax-id/hapax"
)

// A SegmentStatus is what this node has issued of a segment tag, and has in hand.
type SegmentStatus struct {
	Tag string
	hapax.SegmentStats
}

// Segments returns the segment tags that this node issues from, by name. It asks no
// store.
func (s *Service) Segments() []SegmentStatus {
	var all []SegmentStatus
	for l := range s.tags.all() {
		if l.segment != nil {
			all = append(all, SegmentStatus{l.name, l.segment.Stats()})
		}
	}
	slices.SortFunc(all, func(a, b SegmentStatus) int { return cmp.Compare(a.Tag, b.Tag) })
	return all
}

// SnowflakeTags returns the pools of the snowflake tags that were used on this node, by the
// tags' names. It asks no store.
func (s *Service) SnowflakeTags() map[string]string {
	all := map[string]string{}
	for l := range s.tags.all() {
		if l.pool != "" {
			all[l.name] = l.pool
		}
	}
	return all
}
