package witness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
	"github.com/hapax-id/hapax/store/driver"
)

// A Look is a store's rows about the processes that use it.
type Look struct {
	Format int64    // of the rows; 0: they do not say
	By     string   // which version wrote that
	Nodes  []string // nodes whose rows do not say that they have ended
	Fence  string   // why nothing is granted; empty: no fence stands

	Behind error // why a node with this witness would find the store behind, lost or another one; nil: it would not
}

// LookAt looks at a store's rows, and judges it as a node would that has the witness in the
// file at path. It changes nothing. ErrStoreCorrupt for rows of another format.
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
	told, err := checkFormat(ctx, s)
	if err != nil {
		return l, err
	}
	if told != nil {
		l.Format, l.By = told.Format, told.By
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
	l.Behind, err = judgeAs(ctx, s, state)
	return l, err
}

// judgeAs judges a store as a node with that witness does when it joins, and again with
// its first survey, and returns the cause of a refusal.
func judgeAs(ctx context.Context, s store, state record) (cause, err error) {
	g := &Guarded{witness: &Witness{state: state}}
	g.witness.closed = true // nothing is written
	verdict, _, cause, err := g.identify(ctx, s)
	if errors.Is(err, hapax.ErrClosed) { // it would note that this store goes on in place of its own
		verdict, err = isSame, nil
	}
	if err != nil || verdict != isSame {
		return cause, err
	}
	if d, err := g.newDecision(ctx, s); err != nil || d != nil { // it explains the loss
		return nil, err
	}
	if cause, err := g.judgeAll(ctx, s); err != nil || cause != nil {
		return cause, err
	}
	if l := g.witness.latch(); l.isRetired() {
		goes, err := g.goesOn(ctx, s, *l.Retired)
		switch {
		case err != nil:
			return nil, err
		case !goes:
			return l.Retired.Err(), nil
		}
	} else if l.State != "" {
		return fmt.Errorf("%w: no decision was made since this node stopped: %s", hapax.ErrFenced, l.Why), nil
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

// A LookedFile is the result of [LookFile].
type LookedFile struct {
	Format string // of the witness; empty: there is none
	Store  string // the identity of the store that it is for; empty: none yet
	Used   bool   // a process uses it
}

// LookFile looks at the witness in the file at path. It changes nothing. ErrStoreCorrupt
// if it is damaged or has another format.
func LookFile(path string) (LookedFile, error) {
	var l LookedFile
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	state, _, err := readLog(path)
	if err != nil {
		return l, err
	}
	l.Format, l.Store = kindSnapshot, state.Store
	if _, err := os.Stat(path + lockSuffix); err != nil {
		return l, nil //nolint:nilerr // without a lock's file nobody has it
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

// FormatOfRows is the format of the rows that this version keeps in a store.
func FormatOfRows() int64 { return formatNow }
