package hapax_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// recorder notes which grants the store acknowledged to one process.
type recorder struct {
	driver.Store

	mu     sync.Mutex
	grants map[string][]hapax.Grant // by line
}

func (r *recorder) note(line string, g hapax.Grant, err error) {
	if err == nil {
		r.mu.Lock()
		r.grants[line] = append(r.grants[line], g)
		r.mu.Unlock()
	}
}

func (r *recorder) holds(line string, n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.grants[line] {
		if g.Lo <= n && n < g.Hi {
			return true
		}
	}
	return false
}

func (r *recorder) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	a, err := r.Store.Allocate(ctx, tag, n, last)
	r.note(witness.TagLine(tag), a.Grant, err)
	return a, err
}

func (r *recorder) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	l, err := r.Store.AcquireWorker(ctx, req)
	r.note(witness.WorkerLine(req.Pool, l.Worker), l.Grant, err)
	return l, err
}

func (r *recorder) ExtendWorker(ctx context.Context, lease hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	l, err := r.Store.ExtendWorker(ctx, lease, layout, term)
	r.note(witness.WorkerLine(lease.Pool, l.Worker), l.Grant, err)
	return l, err
}

// ledger holds every number issued in a world.
type ledger struct {
	mu     sync.Mutex
	issued map[string]map[hapax.ID]int // by pool or tag, to the node
	total  int
	faults []string
	byCode map[hapax.Code]int
}

func (l *ledger) fault(format string, args ...any) {
	if len(l.faults) < 5 {
		l.faults = append(l.faults, fmt.Sprintf(format, args...))
	}
}

// enter checks numbers that a process issued to one caller, whose last number
// on that line was last.
func (l *ledger) enter(p *process, line string, ids []hapax.ID, last hapax.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.issued[line] == nil {
		l.issued[line] = map[hapax.ID]int{}
	}
	for _, id := range ids {
		if other, twice := l.issued[line][id]; twice {
			l.fault("%s: %d was issued by node %d and by node %d", line, id, other, p.node.id)
		}
		l.issued[line][id] = p.node.id
		l.total++
		if id <= last && (line != hapax.DefaultPool || p.node.world.timeFirst) {
			l.fault("%s: node %d issued %d after %d", line, p.node.id, id, last)
		}
		last = id
		grantLine, unit := witness.TagLine(line), int64(id)
		if line == hapax.DefaultPool {
			fields, err := p.node.world.layout.Parse(id)
			if err != nil {
				l.fault("node %d issued %d: %v", p.node.id, id, err)
				continue
			}
			worker, _ := fields.Get("worker")
			unit, _ = fields.Get("time")
			grantLine = witness.WorkerLine(line, worker)
		}
		if !p.records.holds(grantLine, unit) {
			l.fault("node %d issued %d of %s, outside every grant acknowledged to it", p.node.id, id, grantLine)
		}
	}
}

func (l *ledger) refused(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byCode[hapax.CodeOf(err)]++
}
