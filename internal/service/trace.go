package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/internal/service/define"
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

// tracer finds the grantee of a number.
type tracer struct {
	*core
	*codes
	*workers

	tracing chan struct{} // held by the one who reads ledger and history
}

// Trace tells what this node knows of a number: its grantee and when, and as
// far as the history goes who got it. ErrNotSupported where there is no ledger.
func (tr *tracer) Trace(ctx context.Context, req TraceRequest) (api.Trace, error) {
	var none api.Trace
	if tr.opts.Ledger == nil {
		return none, fmt.Errorf("%w: this server keeps no ledger; see the setting ledger", hapax.ErrNotSupported)
	}
	q, shown, candidates, err := tr.meant(ctx, req)
	if err != nil {
		return none, err
	}
	select {
	case tr.tracing <- struct{}{}:
		defer func() { <-tr.tracing }()
	case <-ctx.Done():
		return none, &hapax.WaitError{Cause: api.ErrLimitExceeded, Context: context.Cause(ctx)}
	}
	found, err := tr.opts.Ledger.Find(ctx, q)
	if err != nil {
		return none, err
	}
	if q.Tag == "" { // what is shown for these numbers is another one, which the history knows
		found.Lines = slices.DeleteFunc(found.Lines, func(l ledger.FoundLine) bool {
			tag, ok := witness.CutTagLine(l.Name)
			return ok && len(tr.strategies.Frozen(string(hapax.KindSegment), tag)) > 0
		})
	}
	var history *strategy.HistoryFinding
	if kept := tr.strategies.History(); kept != nil {
		h, err := kept.Find(ctx, shown, func(tag, kind string) bool { return tr.concerns(q, tag, kind) })
		if err != nil {
			return none, err
		}
		history = &h
	}
	candidates, err = tr.withFacts(ctx, candidates, found)
	if err != nil {
		return none, err
	}
	if req.Tag != "" && len(found.Lines) == 0 && (history == nil || len(history.Issues) == 0) && noneExists(candidates) {
		if _, ok := tr.declared(req.Tag); !ok {
			return none, fmt.Errorf("%w: %q", hapax.ErrTagNotFound, req.Tag)
		}
	}
	if history != nil {
		for i := range candidates {
			candidates[i].Recording = tr.recording(candidates[i])
		}
	}
	t := ledger.Judge(shown, tr.opts.Ledger.Node(), found, history, candidates)
	if len(t.Lines) == 0 && (q.Pool != "" || !q.Layout.IsZero()) {
		t.Lines = append(t.Lines, tr.noLine(ctx, q))
	}
	return t, nil
}

// noneExists reports whether the stores say of every line that there is none.
func noneExists(candidates []ledger.Candidate) bool {
	return len(candidates) > 0 && !slices.ContainsFunc(candidates, func(c ledger.Candidate) bool { return !c.Facts.Known || c.Facts.Exists })
}

// meant returns which grants to look for, the number as callers see it, and on which
// lines it must be.
func (tr *tracer) meant(ctx context.Context, req TraceRequest) (q ledger.Query, shown hapax.ID, candidates []ledger.Candidate, err error) {
	if req.Tag != "" && req.Layout != "" {
		return q, 0, nil, outOfRange("layout", req.Layout, "none where a tag is given")
	}
	if req.Code {
		if req.Tag == "" {
			return q, 0, nil, outOfRange("tag", "", "the tag that the code is of")
		}
		c, err := tr.ParseCode(ctx, req.Tag, req.Text)
		if err != nil {
			return q, 0, nil, err
		}
		shown = c.ID
		if c.Period != "" {
			req.Tag += define.LineMark + c.Period
		}
	} else if shown, err = hapax.ParseID(req.Text); err != nil {
		return q, 0, nil, err
	}
	q.Number = shown
	switch {
	case req.Tag != "":
		candidates, err = tr.onTag(ctx, req.Tag, &q)
	case req.Layout != "":
		candidates, err = tr.onLayout(ctx, req.Layout, &q)
	}
	return q, shown, candidates, err
}

// onTag has a query ask for the grants of a tag, or of its pool.
func (tr *tracer) onTag(ctx context.Context, name string, q *ledger.Query) ([]ledger.Candidate, error) {
	t, err := tr.definition(ctx, name)
	if err != nil && !errors.Is(err, hapax.ErrTagNotFound) && !hapax.IsTransient(err) {
		return nil, err
	}
	if def, ok := tr.declared(name); ok && err != nil {
		t = def
	}
	if t.Kind == hapax.KindSnowflake {
		layout, err := tr.PoolLayout(ctx, t.Pool)
		if err != nil && !hapax.IsTransient(err) {
			return nil, err
		}
		q.Pool, q.Layout = t.Pool, layout
		return onPool(q.Number, layout, t.Pool), nil
	}
	if err == nil {
		if err := tr.checkFrozen(t); err != nil {
			return nil, err // which number of the tag is shown as this one, other nodes know
		}
	}
	q.Tag = name
	id, ok := tr.strategies.Original(t.StrategyName(), name, q.Number)
	if !ok {
		return nil, outOfRange("id", int64(q.Number), "a number that the plugins of the tag can have shown")
	}
	shown := q.Number
	q.Number = id
	candidates := []ledger.Candidate{{Name: witness.TagLine(name), Position: int64(id)}}
	for system, other := range tr.opts.Beside {
		if _, err := other.Tag(ctx, name); err == nil {
			candidates = append(candidates, ledger.Candidate{Name: ledger.LineIn(system, witness.TagLine(name)), Position: int64(shown)})
		}
	}
	return candidates, nil
}

// onLayout has a query ask for the grants of pools with a layout.
func (tr *tracer) onLayout(ctx context.Context, nameOrSpec string, q *ledger.Query) (candidates []ledger.Candidate, err error) {
	if q.Layout, err = hapax.ParseLayout(nameOrSpec); err != nil {
		return nil, err
	}
	pools, err := tr.Pools(ctx)
	if err != nil && !hapax.IsTransient(err) {
		return nil, err
	}
	for _, p := range pools {
		if l, err := hapax.ParseLayout(p.Layout); err == nil && l == q.Layout {
			candidates = append(candidates, onPool(q.Number, l, p.Name)...)
		}
	}
	return candidates, nil
}

// noLine is the verdict on a number that is on no line that a layout stands for.
func (tr *tracer) noLine(ctx context.Context, q ledger.Query) api.TraceLine {
	l := api.TraceLine{Name: "layout/unknown", Pool: q.Pool, Verdict: api.VerdictUnknown, Grants: []api.TraceGrant{}, Issued: []api.TraceHandout{}}
	if q.Layout.IsZero() {
		l.Why = fmt.Sprintf("the store does not answer which layout pool %q has", q.Pool)
		return l
	}
	l.Layout = cmp.Or(q.Layout.Name(), q.Layout.String())
	l.Name = "layout/" + l.Layout
	if _, _, ok := ledger.On(q.Pool, q.Layout, q.Number); !ok {
		l.Verdict, l.Why = api.VerdictNeverGranted, "the layout has no such number"
	} else if _, err := tr.Pools(ctx); err != nil {
		l.Why = "the store does not answer which pools have the layout"
	} else {
		l.Verdict, l.Why = api.VerdictNeverGranted, "no pool has the layout, or none of those that do has used the worker ID"
	}
	return l
}

// concerns reports whether an entry of the history, with its tag and strategy, may
// be about the number that is asked for.
func (tr *tracer) concerns(q ledger.Query, tag, strategy string) bool {
	if strategy != string(hapax.KindSnowflake) {
		return q.Pool == "" && q.Layout.IsZero() && (q.Tag == "" || tag == q.Tag || strings.HasPrefix(q.Tag, tag+define.LineMark))
	}
	pool := ""
	if l := tr.tags.find(tag); l != nil {
		pool = l.pool
	} else if def, ok := tr.declared(tag); ok {
		pool = def.Pool
	}
	return q.Tag == "" && (q.Pool == "" || pool == "" || pool == q.Pool)
}

// onPool returns the line that a number is on if it is a pool's.
func onPool(id hapax.ID, l hapax.Layout, pool string) []ledger.Candidate {
	if c, _, ok := ledger.On(pool, l, id); ok {
		return []ledger.Candidate{c}
	}
	return nil
}

// withFacts asks the store about the candidates, and about lines that only the
// ledger knows.
func (tr *tracer) withFacts(ctx context.Context, candidates []ledger.Candidate, found ledger.Found) ([]ledger.Candidate, error) {
	known := map[string]bool{}
	for _, c := range candidates {
		known[c.Name] = true
	}
	for _, l := range found.Lines {
		if !known[l.Name] {
			layout, _ := hapax.ParseLayout(l.Layout) // a tag's line has none
			candidates = append(candidates, ledger.Candidate{Name: l.Name, Position: l.Position, Layout: layout, Facts: ledger.Facts{Maker: l.Maker}})
		}
	}
	kept := candidates[:0]
	for _, c := range candidates {
		facts, err := tr.facts(ctx, c.Name)
		if err != nil && !hapax.IsTransient(err) && !errors.Is(err, hapax.ErrTagNotFound) && !errors.Is(err, hapax.ErrPoolNotFound) {
			return nil, err
		}
		if facts.Known {
			c.Facts = facts
		}
		if facts.Restart && len(found.Lines) > 0 {
			continue // what is found is on the lines of its periods
		}
		if len(candidates) > 1 && facts.Known && !facts.Exists && !slices.ContainsFunc(found.Lines, func(l ledger.FoundLine) bool { return l.Name == c.Name }) {
			continue // it is a foreign table's tag
		}
		kept = append(kept, c)
	}
	return kept, nil
}

// recording tells whether the history sees what is issued on a line.
func (tr *tracer) recording(c ledger.Candidate) ledger.Recording {
	strategy, tag := string(hapax.KindSnowflake), "" // a worker's numbers are of all tags of its pool
	if name, ok := witness.CutTagLine(c.Name); ok {
		strategy, tag = cmp.Or(c.Facts.Strategy, string(hapax.KindSegment)), name
		if parent, _, ok := define.CutLine(name); ok {
			tag = parent
		}
	}
	if tr.strategies.Records(strategy, tag) {
		return ledger.Recorded
	}
	return ledger.NotRecorded
}

// facts asks the store about a line.
func (tr *tracer) facts(ctx context.Context, line string) (f ledger.Facts, err error) {
	if system, below := ledger.CutSystem(line); system != "" {
		// A table that this node has no more is unknown, not empty: its grants are told all the same.
		if other := tr.opts.Beside[system]; other != nil {
			return other.facts(ctx, below)
		}
		return f, nil
	}
	if tag, ok := witness.CutTagLine(line); ok {
		t, err := admin(ctx, tr.core, func(ctx context.Context) (define.Tag, error) { return tr.store.Definition(ctx, tag) })
		if err != nil {
			f.Known = errors.Is(err, hapax.ErrTagNotFound)
			return f, err
		}
		f = ledger.Facts{Known: true, Exists: true, Mark: t.Mark, Tag: t.Tag, Strategy: t.StrategyName(), Maker: t.Maker()}
		// What this node cannot read or would replace otherwise may show other numbers than were granted.
		if t.Unread != nil || tr.checkFrozen(t) != nil {
			f.Maker = define.ByPlugins
		}
		if mark, ok := tr.opts.Marks[t.Says.Strategy]; ok {
			f.Maker, f.Shared = "", t.Says.Strategy
			if f.Mark, err = mark(ctx, tag); err != nil {
				f.Known = false // the grants are told all the same
			}
		}
		if c, err := tr.opts.keys().Code(t); err == nil {
			f.Restart = c.HasPeriod()
		}
		return f, nil
	}
	pool, worker, ok := ledger.CutWorkerLine(line)
	if !ok {
		return f, nil
	}
	workers, err := tr.Workers(ctx, pool)
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
