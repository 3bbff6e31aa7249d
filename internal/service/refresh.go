package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/health"
)

// refresh creates the tag that exists from the start, and then keeps up with
// tags that were deleted elsewhere and workers in use, until the service closes.
func (s *Service) refresh() {
	for started := s.opts.OneShot; ; {
		wait := s.opts.Refresh
		if !started {
			started = s.begin(s.life) == nil
		}
		if err := s.review(s.life); err != nil || !started {
			wait = min(wait, time.Second) // issuers report the store's trouble
		} else {
			s.evict()
			s.leases.holders.running(s.leaseTime()) // forgets the others, where nobody reads the metrics
			_ = s.census(s.life)                    // counted anew in a while
		}
		select {
		case <-s.life.Done():
			return
		case <-s.opened:
		case <-time.After(wait):
		}
	}
}

// evict closes the segments of tags that have been idle, which hands back what they
// hold. The next use opens them again.
func (s *Service) evict() {
	now := time.Since(s.began)
	for l := range s.tags.all() {
		if l.segment == nil {
			continue
		}
		if issued := l.segment.Stats().Issued; l.busy == 0 || issued != l.issued {
			l.issued, l.busy = issued, now
		} else if now-l.busy >= s.opts.TagIdle {
			s.drop(l)
		}
	}
}

// begin creates the tag that exists from the start, unless it was deleted.
func (s *Service) begin(ctx context.Context) error {
	_, err := s.store.Tag(ctx, SnowflakeTag)
	if !errors.Is(err, hapax.ErrTagNotFound) {
		return err
	}
	def, _ := s.declared(SnowflakeTag)
	_, err = s.CreateTag(ctx, def.Tag, hapax.CreateFirstUse)
	// Another node was quicker, or an operator does not want it.
	if errors.Is(err, hapax.ErrTagExists) || errors.Is(err, hapax.ErrTagDeleted) {
		return nil
	}
	return err
}

// review goes through the store's tags, and takes lines out of use whose tag was deleted
// or is another than it was. It also learns the layouts of the pools.
func (s *Service) review(ctx context.Context) error {
	var lines lineReview
	unreadable := map[string]string{}
	_, err := s.each(ctx, func(t hapax.Tag) {
		if t.Kind == hapax.KindUnreadable && len(unreadable) < health.MaxAlarms {
			// The list does not say why; the row itself does.
			if _, err := s.store.Tag(ctx, t.Name); errors.Is(err, hapax.ErrStoreCorrupt) {
				unreadable[t.Name] = hapax.Message(err)
			}
		}
		lines.see(s, t, s.now())
		if l := s.tags.find(t.Name); l != nil && !l.matches(t) {
			s.drop(l)
			if t.Deleted {
				s.refuse(t.Name, fmt.Errorf("%w: %q", hapax.ErrTagDeleted, t.Name))
				s.observe(hapax.Event{Kind: hapax.EventTagDeleted, Tag: t.Name})
			}
		}
	})
	if err != nil {
		return err
	}
	s.unreadable.Store(&unreadable)
	if !s.opts.OneShot {
		lines.retire(ctx, s)
	}
	return s.learnPools(ctx)
}

// matches reports whether the line still issues what the tag is.
func (l *line) matches(t hapax.Tag) bool {
	return !t.Deleted && (l.pool == "") == (t.Kind == hapax.KindSegment) && l.pool == t.Pool && l.extra == t.Extra
}
