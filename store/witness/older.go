package witness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// What older versions have left: witnesses that know marks and no fencing tokens, and
// heartbeats by node in place of those by process.

// The first records of witnesses that older versions wrote.
const (
	kindFirst  = "hapax-witness-1" // names and numbers between tabs
	kindSecond = "hapax-witness-2" // JSON
)

// Rows of older versions. A fence of theirs that is never lifted keeps them from the
// store once a process of this version has joined it.
const (
	tableNodesBefore = "nodes"
	rowFenceBefore   = "fence"
	closedID         = "format-3"
)

// The format of the rows that this version keeps in a store. It is raised when an older
// version would misread them, so that no two versions run side by side that do.
const (
	formatNow = 3
	rowFormat = "format" // of driver.TableGuard
)

// A formatRow says in which format a store's rows are, and who wrote that.
type formatRow struct {
	Format int64  `json:"format"`
	By     string `json:"by"`
}

// checkFormat refuses a store whose rows have a newer format than this version knows. It
// reports whether the store says which one it has.
func checkFormat(ctx context.Context, s driver.Rows) (told bool, err error) {
	raw, err := s.Row(ctx, driver.TableGuard, rowFormat)
	if err != nil || raw == nil {
		return false, unavailable(err)
	}
	var row formatRow // a newer version's may say more
	if err := json.Unmarshal(raw, &row); err != nil {
		return true, fmt.Errorf("%w: row %q of table %q: %w", hapax.ErrStoreCorrupt, rowFormat, driver.TableGuard, err)
	}
	if row.Format > formatNow {
		return true, fmt.Errorf("%w: the store's rows have format %d, written by hapax %s, and this version, hapax %s, knows formats up to %d: use a newer version",
			hapax.ErrStoreCorrupt, row.Format, row.By, hapax.Version(), formatNow)
	}
	return true, nil
}

// claim sees to it that a process may use the store, and none of an older version does.
func (g *Guarded) claim(ctx context.Context, s store) error {
	told, err := checkFormat(ctx, s)
	if err == nil {
		err = g.closeToOlder(ctx, s)
	}
	if err != nil || told {
		return err
	}
	value, err := json.Marshal(formatRow{formatNow, hapax.Version()})
	if err != nil {
		return err
	}
	_, err = s.SwapRow(ctx, driver.TableGuard, rowFormat, nil, value) // where another was first, it says the same
	return unavailable(err)
}

// applyFirst applies a record of a witness of the first format.
func (r *record) applyFirst(payload []byte, kind string) error {
	fields := strings.Split(string(payload), "\t")
	if len(fields) < 2 || fields[0] != kind || len(fields)%2 != 0 {
		return fmt.Errorf("%.40q is not a record of kind %s", payload, kind)
	}
	if fields[1] != "" {
		r.Store = fields[1]
	}
	for pair := range slices.Chunk(fields[2:], 2) {
		mark, err := strconv.ParseInt(pair[0], 10, 64)
		if err != nil {
			return err
		}
		r.Lines[pair[1]] = Pair{Mark: mark}
	}
	return nil
}

// applySecond applies a record of a witness of the second format. Of what it knew of
// nodes and of hand-backs under way nothing is needed: a mark is what it was before them.
func (r *record) applySecond(payload []byte, kind string) error {
	found, text, _ := bytes.Cut(payload, []byte{'\t'})
	if string(found) != kind {
		return fmt.Errorf("%.40q is not a record of kind %s", payload, kind)
	}
	var change struct {
		Store   string            `json:"store"`
		Node    string            `json:"node"`
		Beat    int64             `json:"beat"`
		At      int64             `json:"at"`
		Refusal *string           `json:"refusal"`
		Fence   string            `json:"fence"`
		Alone   bool              `json:"alone"`
		Marks   map[string]int64  `json:"marks"`
		Peers   map[string]string `json:"peers"`
		Offers  map[string]int64  `json:"offers"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&change); err != nil {
		return err
	}
	if change.Store != "" {
		r.Store = change.Store
	}
	if change.Refusal != nil {
		r.Latch = &latch{}
		if *change.Refusal != "" {
			r.Latch = &latch{State: Refusing, Code: string(hapax.ErrStoreRolledBack.Code()), Why: *change.Refusal}
		}
	}
	for line, mark := range change.Marks {
		r.Lines[line] = Pair{Mark: mark}
	}
	return nil
}

// applierOf returns how the records of a log are applied that begins with the given one,
// and the kind of that. A newer format than this program's is named and not touched.
func (r *record) applierOf(first []byte, path string) (apply func(payload []byte, kind string) error, kind string, err error) {
	found, _, _ := strings.Cut(string(first), "\t")
	switch found {
	case kindFirst:
		apply = r.applyFirst
	case kindSecond:
		apply = r.applySecond
	case kindSnapshot:
		return r.apply, found, nil
	default:
		return nil, "", fmt.Errorf("%w: the witness %s begins with %.40q, and this version, hapax %s, reads the formats %s to %s: use the version that wrote it, or a newer one",
			hapax.ErrStoreCorrupt, path, found, hapax.Version(), kindFirst, kindSnapshot)
	}
	r.Older = new(true)
	return apply, found, nil
}

// isOlder reports whether the lines are marks of an older version's witness, to which the
// store was not raised yet.
func (w *Witness) isOlder() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Older != nil && *w.state.Older
}

// raiseOlder sees to it that no line of the store is below what an older version's
// witness knows. Its marks judge nothing, since a hand-back may have lowered one rightly.
func (g *Guarded) raiseOlder(ctx context.Context, s store) error {
	if !g.witness.isOlder() {
		return nil
	}
	healer, ok := s.(driver.Healing)
	if !ok {
		return fmt.Errorf("%w: %T cannot be raised to what the witness of an older version knows", hapax.ErrNotSupported, s)
	}
	have, err := readLines(ctx, s)
	if err != nil {
		return unavailable(err)
	}
	raised, before := 0, g.witness.snapshot()
	for _, line := range slices.Sorted(maps.Keys(before.Lines)) {
		p, now := before.Lines[line], have.pairs[line]
		if p.Mark <= now.Mark || have.defs[line].Kind != "" {
			continue
		}
		if err := healLine(ctx, healer, line, p.above(now), have.defs); err != nil {
			return unavailable(fmt.Errorf("raising %s to %d, which the witness of an older version knows: %w", line, p.Mark, err))
		}
		raised++
	}
	if err := g.witness.commit(func(b *record) error { b.Older = new(false); return nil }); err != nil {
		return err
	}
	g.opts.Log.Info("went on from the witness of an older version", "format", kindSnapshot, "lines", len(before.Lines), "lines_raised", raised)
	return nil
}

// An olderNode is the heartbeat of a node of an older version, since when it has been seen
// not to advance, and whether it was seen to.
type olderNode struct {
	value string
	at    time.Duration
	runs  bool
}

// An olderRow is what this version needs of a heartbeat of an older one.
type olderRow struct {
	Name  string `json:"name"`
	Every int64  `json:"every_ms"`
}

func decodeOlder(name string, raw []byte) (row olderRow, err error) {
	if err := json.Unmarshal(raw, &row); err != nil {
		return row, fmt.Errorf("%w: row %q of table %q: %w", hapax.ErrStoreCorrupt, name, tableNodesBefore, err)
	}
	return row, nil
}

// every returns how often the node writes its heartbeat at least.
func (r olderRow) every() time.Duration {
	return min(time.Duration(r.Every)*time.Millisecond, time.Minute)
}

// closeToOlder waits until no node of an older version runs on the store, and keeps them
// from it from then on: they would be granted numbers that no heartbeat vouches for.
func (g *Guarded) closeToOlder(ctx context.Context, s store) error {
	if !s.Shared() {
		return nil
	}
	fence, err := s.Row(ctx, driver.TableFence, rowFenceBefore)
	if err != nil {
		return unavailable(err)
	}
	var stands struct {
		ID   string    `json:"id"`
		Node string    `json:"node"`
		Name string    `json:"name"`
		At   time.Time `json:"at"`
		Why  string    `json:"why"`

		Replaces []string `json:"replaces,omitempty"`
	}
	if fence != nil {
		if err := driver.DecodeRow(driver.TableFence, rowFenceBefore, fence, &stands); err != nil {
			return err
		}
		if stands.ID == closedID {
			return excludeOlder(ctx, s)
		}
		return fmt.Errorf("%w: a fence stands that an older version raised (node %q: %s); run `hapax adopt` of that version first", hapax.ErrFenced, stands.Name, stands.Why)
	}
	rows, err := readRows(ctx, s, tableNodesBefore)
	if err != nil {
		return err
	}
	now, wait := g.now(), time.Duration(0)
	if g.older == nil {
		g.older = map[string]olderNode{}
	}
	for name, raw := range rows {
		about, err := decodeOlder(name, raw)
		if err != nil {
			return err
		}
		node, seen := g.older[name]
		if node.value != string(raw) {
			node = olderNode{string(raw), now, seen}
			g.older[name] = node
		}
		every := max(g.opts.Heartbeat, about.every())
		left := waitOf(every) - (now - node.at)
		if left > 0 && node.runs {
			return fmt.Errorf("%w: node %q of an older version runs on this store; stop it first, since its grants cannot be guarded", hapax.ErrStoreUnavailable, about.Name)
		}
		wait = max(wait, left)
	}
	if wait > 0 {
		return fmt.Errorf("%w: nodes of an older version may run on this store; that is known in %v", hapax.ErrStoreUnavailable, wait.Round(time.Second))
	}
	stands.ID, stands.Node, stands.Name, stands.At = closedID, g.run, g.opts.Name, time.Now().UTC()
	stands.Why = "the store is used by a newer version of hapax, whose grants this one cannot guard: run that version"
	value, err := json.Marshal(stands)
	if err != nil {
		return err
	}
	if ok, err := s.SwapRow(ctx, driver.TableFence, rowFenceBefore, nil, value); err != nil || !ok {
		return unavailable(err) // or another process of this version was first
	}
	for name, raw := range rows {
		if _, err := s.SwapRow(ctx, tableNodesBefore, name, raw, nil); err != nil {
			return unavailable(err)
		}
	}
	if err := excludeOlder(ctx, s); err != nil {
		return err
	}
	if len(rows) > 0 {
		g.opts.Log.Info("took over the store from an older version, which is kept from it from now on", "nodes", len(rows))
	}
	return nil
}

// excludeOlder keeps versions from the store that do not look for a fence in its rows.
func excludeOlder(ctx context.Context, s store) error {
	if e, ok := s.(driver.Exclusive); ok {
		return unavailable(e.ExcludeOlder(ctx))
	}
	return nil
}
