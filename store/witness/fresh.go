package witness

import (
	"context"
	"maps"

	"github.com/hapax-id/hapax/store/driver"
)

// Lines are fresh that were granted after the last acknowledged heartbeat was sent. A copy of
// the store may have that heartbeat and lack the grant: one that was overtaken by a heartbeat,
// or one in a store that is split. So they are compared where the node asks whether its grants
// are there: at another primary, and before it joins again.

// grantedLocked notes lines that were granted, with the latest heartbeat that was sent by then.
func (g *Guarded) grantedLocked(all []granted) {
	if !g.shared {
		return
	}
	if g.fresh == nil {
		g.fresh = map[string]int64{}
	}
	for _, got := range all {
		g.fresh[got.line] = g.me.beat.Count
	}
}

// settleFresh forgets the lines that any copy with the last acknowledged heartbeat has, too. A
// heartbeat at another primary does not count before the question about that primary is over.
func (g *Guarded) settleFresh() {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.fresh, func(_ string, sent int64) bool { return sent < g.me.sure })
}

// keepRow has the witness know the last acknowledged heartbeat of a row that the process is
// about to lose, so that the next one is judged by it. The witness hears of heartbeats with
// grants alone otherwise.
func (g *Guarded) keepRow() {
	g.mu.Lock()
	row, count := g.me.row, g.me.acked.Count
	for line := range g.fresh {
		g.fresh[line] = 0 // of no heartbeat of the next row
	}
	g.mu.Unlock()
	if row != "" {
		g.witness.note(func(b *record) { b.Own[row] = own{Count: count} })
	}
}

// tablePrimaries has a row for each start of a process: the primary at which it has found its
// grants. A process that asks about a primary waits for the others' rows here, since a heartbeat
// shows less. A process of an older version has none.
const tablePrimaries = "primaries"

// A question is a process's knowledge when it begins to look for its grants.
type question struct {
	primary string
	begun   int64
	nothing bool // it was granted nothing lately, so that its heartbeat tells all
}

// tellPrimary reports in the store at which primary the process has found all, if it is the same
// one since it began to look: the answer about the primary before says nothing of the next.
func (g *Guarded) tellPrimary(ctx context.Context, s store, q question) error {
	g.mu.Lock()
	row, primary, told := g.me.row, g.me.primary, g.me.told
	found := q.nothing || q.primary == primary && q.begun == g.me.begun
	g.mu.Unlock()
	if primary == "" || primary == told || !found {
		return nil
	}
	var raw []byte // as it was reported last
	if told != "" {
		raw = []byte(told)
	}
	ok, err := g.pulsed(s).SwapRow(ctx, tablePrimaries, row, raw, []byte(primary))
	if err == nil && !ok { // an answer was lost
		raw, err = s.Row(ctx, tablePrimaries, row)
		if err = unavailable(err); err == nil && string(raw) != primary {
			ok, err = g.pulsed(s).SwapRow(ctx, tablePrimaries, row, raw, []byte(primary))
		} else if err == nil {
			ok = true
		}
	}
	if err != nil || !ok {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.me.row == row {
		g.me.told = primary
	}
	return nil
}

// compareFresh compares the fresh lines with the store.
func (g *Guarded) compareFresh(ctx context.Context, s store) (question, error) {
	g.mu.Lock()
	lines := maps.Clone(g.fresh)
	q := question{g.me.primary, g.me.begun, len(lines) == 0}
	g.mu.Unlock()
	return q, g.compareLines(ctx, s, lines)
}

func (g *Guarded) compareLines(ctx context.Context, s store, lines map[string]int64) error {
	pools := map[string]bool{}
	var tags []string
	for line := range lines {
		if tag, ok := CutTagLine(line); ok {
			if tags = append(tags, tag); len(tags) == driver.MaxNamed {
				if err := g.compareTags(ctx, s, tags); err != nil {
					return err
				}
				tags = nil
			}
		} else if pool, _, ok := CutWorkerLine(line); ok {
			pools[pool] = true
		}
	}
	if err := g.compareTags(ctx, s, tags); err != nil {
		return err
	}
	for pool := range pools {
		known := g.witness.pairsOf(pool)
		workers, err := s.Workers(ctx, pool)
		if err != nil {
			return unavailable(err)
		}
		have := make(map[string]Pair, len(workers))
		for _, w := range workers {
			have[WorkerLine(w.Pool, w.ID)] = Pair{w.Token, w.Mark}
		}
		for line, want := range known {
			if _, isFresh := lines[line]; isFresh && have[line].Less(want) {
				return g.isBehind(lacksLine(line, want, have[line]))
			}
		}
	}
	return nil
}
