package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
)

const (
	maxRefusals = 4096        // refused names remembered
	refusalLife = time.Second // how long a refusal answers for the store
)

// refusals remember for a moment why tags cannot be used, so that the store is not asked
// by every call.
type refusals map[string]refusal

type refusal struct {
	err   error
	until time.Time
}

// of returns why a tag is refused, or nil.
func (r refusals) of(tag string) error {
	why, ok := r[tag]
	if ok && time.Now().Before(why.until) {
		return why.err
	}
	delete(r, tag)
	return nil
}

func (r refusals) add(tag string, err error) {
	if len(r) >= maxRefusals {
		// Anybody can ask for names of tags that are none; what is forgotten costs one question each.
		clear(r)
	}
	r[tag] = refusal{err, time.Now().Add(refusalLife)}
}

// refuse remembers that a tag cannot be used.
func (s *Service) refuse(tag string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused.add(tag, err)
}

// forgive forgets that a tag could not be used.
func (s *Service) forgive(tag string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.refused, tag)
	delete(s.absent, tag)
}

// Existing refuses a tag that its first use would create, for callers whose numbers may
// not begin anew: ErrTagNotFound unless the store or the options have it, ErrKindMismatch
// for a snowflake tag.
func (s *Service) Existing(ctx context.Context, tag string) error {
	l := s.tags.find(tag)
	if l != nil && l.pool == "" {
		return nil
	}
	s.mu.Lock()
	err := s.absent.of(tag)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	t, err := s.Tag(ctx, tag)
	if def, ok := s.declared(tag); ok && errors.Is(err, hapax.ErrTagNotFound) {
		t, err = def.Tag, nil
	}
	switch {
	case errors.Is(err, hapax.ErrTagNotFound):
		s.mu.Lock()
		s.absent.add(tag, err)
		s.mu.Unlock()
	case err == nil && t.Kind != hapax.KindSegment: // the service itself tells of a deleted one
		err = fmt.Errorf("%w: %q is a %s tag", hapax.ErrKindMismatch, tag, t.Kind)
	}
	return err
}
