package service

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/store/witness"
	"github.com/hapax-id/hapax/strategy"
)

// A TraceRequest tells which number is meant: a tag's, or one of a pool with this
// layout. Without both, it is looked up on every line that the ledger knows.
type TraceRequest struct {
	Text   string // the number, or with Code the text that shows it
	Code   bool
	Tag    string
	Layout string // name or spec
}

// Trace tells what this node knows of a number: who was granted it and when, and as
// far as the history goes who got it. ErrNotSupported where there is no ledger.
func (s *Service) Trace(ctx context.Context, req TraceRequest) (ledger.Trace, error) {
	var none ledger.Trace
	if s.opts.Ledger == nil {
		return none, fmt.Errorf("%w: this server keeps no ledger; see the setting ledger", hapax.ErrNotSupported)
	}
	q, candidates, err := s.meant(ctx, req)
	if err != nil {
		return none, err
	}
	select {
	case s.tracing <- struct{}{}:
		defer func() { <-s.tracing }()
	case <-ctx.Done():
		return none, &hapax.WaitError{Cause: hapax.ErrLimitExceeded, Context: context.Cause(ctx)}
	}
	found, err := s.opts.Ledger.Find(ctx, q)
	if err != nil {
		return none, err
	}
	var history *strategy.HistoryFinding
	if s.opts.History != nil {
		h, err := s.opts.History.Find(ctx, q.Number, func(tag, kind string) bool { return s.concerns(q, tag, kind) })
		if err != nil {
			return none, err
		}
		history = &h
	}
	candidates, err = s.withFacts(ctx, candidates, found)
	if err != nil {
		return none, err
	}
	return ledger.Judge(q.Number, s.opts.Ledger.Node(), found, history, candidates), nil
}

// meant returns which grants to look for, and on which lines the number must be.
func (s *Service) meant(ctx context.Context, req TraceRequest) (q ledger.Query, candidates []ledger.Candidate, err error) {
	if req.Tag != "" && req.Layout != "" {
		return q, nil, outOfRange("layout", req.Layout, "none where a tag is given")
	}
	if req.Code {
		if req.Tag == "" {
			return q, nil, outOfRange("tag", "", "the tag that the code is of")
		}
		c, err := s.ParseCode(ctx, req.Tag, req.Text)
		if err != nil {
			return q, nil, err
		}
		q.Number = c.ID
		if c.Period != "" {
			q.Tag = req.Tag + lineMark + c.Period
			return q, []ledger.Candidate{{Name: witness.TagLine(q.Tag), Position: int64(c.ID)}}, nil
		}
	} else if q.Number, err = hapax.ParseID(req.Text); err != nil {
		return q, nil, err
	}
	switch {
	case req.Tag != "":
		t, err := s.Tag(ctx, req.Tag)
		if err != nil && !errors.Is(err, hapax.ErrTagNotFound) && !isTransient(err) {
			return q, nil, err
		}
		if def, ok := s.declared(req.Tag); ok && err != nil {
			t = def
		}
		if t.Kind == hapax.KindSnowflake {
			layout, err := s.PoolLayout(ctx, t.Pool)
			if err != nil && !isTransient(err) {
				return q, nil, err
			}
			q.Pool, q.Layout = t.Pool, layout
			return q, onPools(q.Number, layout, t.Pool), nil
		}
		q.Tag = req.Tag
		candidates = append(candidates, ledger.Candidate{Name: witness.TagLine(req.Tag), Position: int64(q.Number)})
	case req.Layout != "":
		if q.Layout, err = hapax.ParseLayout(req.Layout); err != nil {
			return q, nil, err
		}
		pools, err := s.Pools(ctx)
		if err != nil && !isTransient(err) {
			return q, nil, err
		}
		for _, p := range pools {
			if l, err := hapax.ParseLayout(p.Layout); err == nil && l == q.Layout {
				candidates = append(candidates, onPools(q.Number, l, p.Name)...)
			}
		}
	}
	return q, candidates, nil
}

// concerns reports whether an entry of the history, with its tag and strategy, may
// be about the number that is asked for.
func (s *Service) concerns(q ledger.Query, tag, strategy string) bool {
	if strategy != string(hapax.KindSnowflake) {
		return q.Pool == "" && q.Layout.IsZero() && (q.Tag == "" || tag == q.Tag || strings.HasPrefix(q.Tag, tag+lineMark))
	}
	pool := ""
	if l := s.tags.find(tag); l != nil {
		pool = l.pool
	} else if def, ok := s.declared(tag); ok {
		pool = def.Pool
	}
	return q.Tag == "" && (q.Pool == "" || pool == "" || pool == q.Pool)
}

// onPools returns the line that a number is on if it is a pool's.
func onPools(id hapax.ID, l hapax.Layout, pool string) []ledger.Candidate {
	if c, _, ok := ledger.On(pool, l, id); ok {
		return []ledger.Candidate{c}
	}
	return nil
}

// withFacts asks the store about the candidates, and about lines that only the
// ledger knows.
func (s *Service) withFacts(ctx context.Context, candidates []ledger.Candidate, found ledger.Found) ([]ledger.Candidate, error) {
	known := map[string]bool{}
	for _, c := range candidates {
		known[c.Name] = true
	}
	for _, l := range found.Lines {
		if !known[l.Name] {
			layout, _ := hapax.ParseLayout(l.Layout) // a tag's line has none
			candidates = append(candidates, ledger.Candidate{Name: l.Name, Position: l.Position, Layout: layout})
		}
	}
	kept := candidates[:0]
	for _, c := range candidates {
		facts, err := s.facts(ctx, c.Name)
		if err != nil && !isTransient(err) && !errors.Is(err, hapax.ErrTagNotFound) && !errors.Is(err, hapax.ErrPoolNotFound) {
			return nil, err
		}
		if c.Facts = facts; facts.Restart && len(found.Lines) > 0 {
			continue // what is found is on the lines of its periods
		}
		kept = append(kept, c)
	}
	return kept, nil
}

// facts asks the store about a line.
func (s *Service) facts(ctx context.Context, line string) (f ledger.Facts, err error) {
	if tag, ok := witness.CutTagLine(line); ok {
		t, err := admin(ctx, s, func(ctx context.Context) (hapax.Tag, error) { return s.store.Tag(ctx, tag) })
		if err != nil {
			f.Known = errors.Is(err, hapax.ErrTagNotFound)
			return f, err
		}
		f = ledger.Facts{Known: true, Exists: true, Mark: t.Mark, Tag: t}
		if c, err := s.opts.code(t); err == nil {
			f.Restart = c.hasPeriod()
		}
		return f, nil
	}
	pool, worker, ok := ledger.CutWorkerLine(line)
	if !ok {
		return f, nil
	}
	workers, err := s.Workers(ctx, pool)
	if err != nil {
		f.Known = errors.Is(err, hapax.ErrPoolNotFound)
		return f, err
	}
	f.Known = true
	for _, w := range workers {
		if w.ID == worker {
			f.Exists, f.Mark, f.Worker = true, w.Mark, w
		}
	}
	return f, nil
}
