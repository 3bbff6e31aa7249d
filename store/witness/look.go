package witness

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/store/driver"
)

// A Look is what a store's rows tell of those who use it.
type Look struct {
	Format int64    // of the rows; 0: they do not say
	By     string   // which version wrote that
	Older  []string // nodes of an older version, whose heartbeats were seen to advance
	Before int      // heartbeats of an older version, advancing or not
	Nodes  []string // nodes whose rows do not say that they have ended
	Fence  string   // why nothing is granted; empty: no fence stands

	Behind error // why a node with this witness would find the store behind, lost or another one; nil: it would not
}

// LookAt looks at a store's rows, and at heartbeats of an older version for as long as
// they take to advance, and judges it as a node would that has the witness in the file at
// path. It changes nothing. ErrStoreCorrupt for rows of a newer format.
func LookAt(ctx context.Context, opened driver.Store, path string) (Look, error) {
	var l Look
	s, ok := opened.(store)
	if !ok {
		return l, fmt.Errorf("%w: %T has no room for heartbeats and a fence", hapax.ErrNotSupported, opened)
	}
	state, _, err := readLog(path) // before the store, which then knows as much at least
	if err != nil {
		return l, err
	}
	if _, err := checkFormat(ctx, s); err != nil {
		return l, err
	}
	if raw, err := s.Row(ctx, driver.TableGuard, rowFormat); err != nil {
		return l, unavailable(err)
	} else if raw != nil {
		var row formatRow
		if err := json.Unmarshal(raw, &row); err != nil {
			return l, err
		}
		l.Format, l.By = row.Format, row.By
	}
	raw, err := s.Row(ctx, driver.TableFence, driver.RowFence)
	if err != nil {
		return l, unavailable(err)
	}
	if raw != nil {
		f, err := decodeFence(raw)
		if err != nil {
			return l, err
		}
		l.Fence = f.text()
	}
	if err := l.nodes(ctx, s); err != nil {
		return l, err
	}
	if l.Behind, err = judgeAs(ctx, s, state); err != nil {
		return l, err
	}
	return l, l.older(ctx, s)
}

// judgeAs judges a store as a node with that witness does when it joins, and again with
// its first survey, and returns what it would be refused for.
func judgeAs(ctx context.Context, s store, state record) (cause, err error) {
	g := &Guarded{witness: &Witness{state: state}, run: rand.Text()}
	g.witness.closed = true // nothing is written
	verdict, _, cause, err := g.identify(ctx, s)
	if errors.Is(err, hapax.ErrClosed) { // it would note that this store goes on in place of its own
		verdict, err = isSame, nil
	}
	if err != nil || verdict != isSame {
		return cause, err
	}
	if d, err := g.newDecision(ctx, s); err != nil || d != nil { // it explains what the node misses
		return nil, err
	}
	if cause, err := g.judgeAll(ctx, s); err != nil || cause != nil {
		return cause, err
	}
	if l := g.witness.latch(); l.State != "" {
		return fmt.Errorf("%w: no decision was made since this node stopped: %s", hapax.ErrFenced, l.Why), nil
	}
	if g.witness.isOlder() {
		return nil, nil // the store is raised to its marks
	}
	c, err := compareLines(ctx, s, state)
	if err != nil {
		return nil, unavailable(err)
	}
	if c.behind {
		return c.cause(), nil
	}
	return nil, nil
}

func (l *Look) nodes(ctx context.Context, s store) error {
	beats, err := readRows(ctx, s, driver.TableBeats)
	if err != nil {
		return err
	}
	about, err := readNodes(ctx, s)
	if err != nil {
		return err
	}
	for _, row := range slices.Sorted(maps.Keys(beats)) {
		if _, how, err := driver.DecodeBeat(row, beats[row]); err == nil && how == "" {
			l.Nodes = append(l.Nodes, about[row].Name)
		}
	}
	return nil
}

// older finds out whose heartbeats advance.
func (l *Look) older(ctx context.Context, s store) error {
	first, err := readRows(ctx, s, tableNodesBefore)
	if err != nil || len(first) == 0 {
		return err
	}
	l.Before = len(first)
	every := DefaultHeartbeat
	names := map[string]string{}
	for row, raw := range first {
		about, err := decodeOlder(row, raw)
		if err != nil {
			return err
		}
		names[row] = about.Name
		every = max(every, about.every())
	}
	select {
	case <-time.After(2*every + every/2):
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
	later, err := readRows(ctx, s, tableNodesBefore)
	if err != nil {
		return err
	}
	for _, row := range slices.Sorted(maps.Keys(later)) {
		if string(later[row]) != string(first[row]) {
			l.Older = append(l.Older, names[row])
		}
	}
	return nil
}

// A LookedFile is what [LookFile] has found.
type LookedFile struct {
	Format string // of the witness; empty: there is none
	Store  string // the identity of the store that it is for; empty: none yet
	Used   bool   // a process uses it
}

// LookFile looks at the witness in the file at path. It changes nothing. ErrStoreCorrupt
// if it is damaged or has a newer format.
func LookFile(path string) (LookedFile, error) {
	var l LookedFile
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("%w: %w", hapax.ErrWitnessFailed, err)
	}
	defer f.Close()
	line, _ := bufio.NewReader(f).ReadBytes('\n')
	payload, intact := verify(line)
	if !intact {
		return l, fmt.Errorf("%w: the witness %s does not begin with an intact snapshot", hapax.ErrStoreCorrupt, path)
	}
	none := newRecord()
	if _, l.Format, err = none.applierOf(payload, path); err != nil {
		return l, err
	}
	state, _, err := readLog(path)
	if err != nil {
		return l, err
	}
	l.Store = state.Store
	if _, err := os.Stat(path + lockSuffix); err != nil {
		return l, nil
	}
	lock, err := durable.TryLock(path + lockSuffix)
	if errors.Is(err, durable.ErrLocked) {
		l.Used = true
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("%w: %w", hapax.ErrWitnessFailed, err)
	}
	return l, lock.Close()
}

// FormatOfFiles is the format of the witnesses that this version writes.
func FormatOfFiles() string { return kindSnapshot }

// FormatOfRows is the format of the rows that this version keeps in a store.
func FormatOfRows() int64 { return formatNow }
