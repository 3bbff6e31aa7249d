package witness

import (
	"context"
	"maps"
	"slices"

	"github.com/hapax-id/hapax/store/driver"
)

// Each start of a process, and each of its attempts to register, has a row of its own: those
// before the latest are its earlier rows.

// judgeLatest judges the store by the latest row of this directory's processes: one
// that lacks a heartbeat of an earlier row lacks the latest altogether. A row of which
// only the first heartbeat is known may never have arrived.
func (g *Guarded) judgeLatest(ctx context.Context, s store, rows map[string]own) (cause, err error) {
	latest := latestOf(rows)
	if latest == "" {
		return nil, nil
	}
	value, err := s.Row(ctx, driver.TableBeats, latest)
	if err != nil {
		return nil, unavailable(err)
	}
	_, cause, err = g.judgeRow(ctx, s, latest, rows[latest].Count, value)
	return cause, err
}

// latestOf returns the latest row of which more is known than its first heartbeat; empty: none.
func latestOf(rows map[string]own) string {
	latest := ""
	for row, o := range rows {
		if o.Count > 1 {
			latest = max(latest, row)
		}
	}
	return latest
}

// findArrived returns the row of the latest registration without an answer, where so many have joined
// and its number is its own: it stands in the store, and no other process's row does under that
// number; empty: it is not.
func findArrived(ctx context.Context, s store, rows map[string]own, joins int64) (string, error) {
	lost := unansweredOf(rows)
	if lost == "" || joinOf(lost) > joins {
		return "", nil
	}
	raw, err := s.Row(ctx, driver.TableBeats, lost)
	if err != nil || raw == nil {
		return "", unavailable(err)
	}
	// One that has ended may have been written by closeEarlier.
	if _, how, err := driver.DecodeBeat(lost, raw); err != nil || how != "" {
		return "", err
	}
	if !s.Split() {
		return lost, nil
	}
	// There rows stand before their number counts, so that the row of the winner does, too.
	all, err := readRows(ctx, s, driver.TableBeats)
	if err != nil {
		return "", err
	}
	for row := range all {
		if _, mine := rows[row]; !mine && joinOf(row) == joinOf(lost) {
			return "", nil
		}
	}
	return lost, nil
}

// unansweredOf returns the latest row whose registration got no answer; empty: none.
func unansweredOf(rows map[string]own) string {
	lost := ""
	for row, o := range rows {
		if o.Count == 0 {
			lost = max(lost, row)
		}
	}
	return lost
}

// closeEarlier ends the rows of earlier starts under which nothing was granted that the witness does not
// know, so that nobody waits for them; also one that never arrived, for which nobody could attest.
func (g *Guarded) closeEarlier(ctx context.Context, s store) error {
	all := g.witness.rows().Own
	g.mu.Lock()
	delete(all, g.me.row)
	number := g.me.number
	g.mu.Unlock()
	upTo, raw, err := g.readEarlier(ctx, s, slices.Collect(maps.Keys(all)))
	if err != nil {
		return err
	}
	closed := false
	for row, o := range all {
		beat := driver.Beat{Count: 1}
		switch {
		case raw[row] != nil:
			var how string
			if beat, how, err = driver.DecodeBeat(row, raw[row]); err != nil {
				return err
			}
			if how != "" || beat.Grants > o.upTo() {
				continue
			}
		// It has arrived, and was lost or removed since; its number may be given anew; or the
		// original of a copied witness may have gone on under it.
		case o.Count > 1, joinOf(row) <= upTo, joinOf(row) > number, o.Copied:
			continue
		}
		ok, err := g.pulsed(s).SwapRow(ctx, driver.TableBeats, row, raw[row], beat.EncodeEnded("left"))
		if err != nil {
			return err
		}
		closed = closed || ok
	}
	if closed && s.Shared() {
		return tellChange(ctx, g.pulsed(s))
	}
	return nil
}

// readEarlier reads rows of processes, and up to which join rows have been removed.
func (g *Guarded) readEarlier(ctx context.Context, s store, rows []string) (upTo int64, raw map[string][]byte, err error) {
	raw = map[string][]byte{}
	for some := range slices.Chunk(rows, driver.MaxNamed-1) {
		keys := []driver.Key{guardRow(rowCompacted)}
		for _, row := range some {
			keys = append(keys, beatRow(row))
		}
		page, err := readAhead(ctx, s, keys...)
		if err != nil {
			return 0, nil, err
		}
		if upTo, _, err = readCounter(ctx, page, rowCompacted); err != nil {
			return 0, nil, err
		}
		for _, row := range some {
			raw[row] = page.rows[beatRow(row)]
		}
	}
	return upTo, raw, nil
}
