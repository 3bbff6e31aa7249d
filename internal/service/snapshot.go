package service

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/health"
)

// snapshot is what health sees of a service.
type snapshot struct{ *Service }

var _ health.Source = snapshot{}

// Tags implements health.Source.
func (s snapshot) Tags() iter.Seq[health.Tag] {
	return func(yield func(health.Tag) bool) {
		for l := range s.tags.all() {
			if !yield(l.seen()) {
				return
			}
		}
	}
}

// seen returns the line as it is now.
func (l *line) seen() health.Tag {
	t := health.Tag{Name: l.name, Labelled: l.labelled, Pool: l.pool}
	if l.segment != nil {
		t.IsSegment, t.Stats, t.Delta, t.Rate = true, l.segment.Stats(), l.delta, &l.rate
		t.Last, _ = l.segment.Last()
	}
	if f, ok := l.issuer.(*foreignIssuer); ok {
		t.Own, t.Issued = f.Issuer, f.issued.Load()
	}
	return t
}

// A sparer has granted time that it has not handed to the issuer yet.
type sparer interface{ Spare() time.Duration }

// Pools implements health.Source.
func (s snapshot) Pools() (all []health.Pool) {
	for _, p := range s.openPools() {
		seen := health.Pool{Name: p.name, Labelled: p.labelled, Stats: p.issuer.Load().Stats(), Use: p.use.Load()}
		if keeper, ok := p.workers.(sparer); ok {
			seen.Spare = keeper.Spare()
		}
		if census := p.census.Load(); census != nil {
			seen.Census = *census
		}
		if choice := p.choice.Load(); choice != nil && choice.Counted {
			seen.Starts = &choice.Left
		}
		all = append(all, seen)
	}
	return all
}

// Layout implements health.Source.
func (s snapshot) Layout(pool string) hapax.Layout { return s.layoutKnown(pool) }

// Holders implements health.Source.
func (s snapshot) Holders() []hapax.Lease { return s.leases.holders.running(s.leaseTime()) }

// Usage implements health.Source.
func (s snapshot) Usage(most int) []api.Usage { return s.usage("", most) }

// Findings implements health.Source: marks that were behind, and tags that could not be read at
// the last review.
func (s snapshot) Findings(now time.Time) []health.Condition {
	all := s.floorConditions(now)
	if unreadable := s.unreadable.Load(); unreadable != nil {
		for _, tag := range slices.Sorted(maps.Keys(*unreadable)) {
			all = append(all, health.Condition{Alarm: health.AlarmUnreadable, About: tag, Detail: (*unreadable)[tag]})
		}
	}
	return all
}

// newMonitor returns what tells how the service is.
func newMonitor(s *Service) *health.Monitor {
	opts := s.opts
	tags, pools, beside := map[string]health.DeclaredTag{}, map[string]health.DeclaredPool{}, map[string]*health.Monitor{}
	for name, t := range opts.Tags {
		def, ok := s.declared(name)
		tags[name] = health.DeclaredTag{IsSegment: ok && def.Kind == hapax.KindSegment, ReaderBits: t.ReaderBits}
	}
	for name, p := range opts.Pools {
		pools[name] = health.DeclaredPool{Fields: p.Fields, Refuses: p.OnRollback == string(hapax.RollbackRefuse)}
	}
	for name, other := range opts.Beside {
		beside[name] = other.Monitor
	}
	return health.New(health.Options{
		Source: snapshot{s}, Store: s.store, Counters: s.metrics, Strategies: s.strategies, Ledger: opts.Ledger, Log: s.log,
		Tags: tags, Pools: pools, PoolNames: opts.poolNames(), Beside: beside, OneShot: opts.OneShot,
		AlarmBudget: opts.AlarmBudget, AlarmForecast: opts.AlarmForecast, Conditions: opts.Conditions, Notify: opts.Notify,
		Observer: opts.Observer, StoreWarnings: opts.StoreWarnings, Adopt: opts.Adopt,
		Now: s.now, Looks: opts.looks, Life: s.life, Spawn: s.spawn,
	})
}
