package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/internal/signals"
	"github.com/hapax-id/hapax/store/driver"
)

// maxFloorAhead is how far the time of a column's newest number may lie ahead of the clock.
const maxFloorAhead = 10 * time.Minute

// floorAlarm is for how long a mark that was behind is an alarm.
const floorAlarm = 24 * time.Hour

// Messages of the log: for a mark that was behind, for workers that begin above a column,
// and for a tag that is refused, and is not any more.
const (
	FloorRaised  = "a mark was behind the numbers in a column, and was raised above them"
	WorkersAbove = "the workers of a pool go on above the newest number in a column"
	floorUnread  = "a tag is refused: no witness knows how far it was issued, and its columns cannot be read"
	floorRead    = "the columns of a tag that was refused are read again"
)

// A FloorReader returns the highest number in a column, 0 for none, within a bounded time.
type FloorReader func(ctx context.Context, url, table, column string) (int64, error)

// A floorKeeper knows whether a witness of the fleet knows a line.
type floorKeeper interface {
	Known(ctx context.Context, tag string) (known bool, above, founding string, err error)
	NoteKnown(ctx context.Context, tag, above, founding string) error
}

// A pastKeeper knows what a tag was whose row cannot be read.
type pastKeeper interface {
	Was(ctx context.Context, tag string) (t hapax.Tag, known bool, err error)
}

// floors are what this node knows of tags with columns: it admits a line or a pool only
// above the numbers in them.
type floors struct {
	*layouts

	mu     sync.Mutex          // guards the fields below
	tags   map[string]struct{} // that need no look any more; a plain map, since every tag that is used is in it
	pools  map[string]time.Time
	raised map[string]raised
	failed map[string]string // why the columns of tags cannot be read, as the log has it
}

type raised struct {
	at       time.Time
	from, to int64
}

// highest returns the highest number in any of the columns.
func (fs *floors) highest(ctx context.Context, tag string, all []api.FloorFrom) (int64, error) {
	if fs.opts.Floors == nil {
		return 0, fmt.Errorf("%w: tag %q has floor_from, and this program reads no columns", hapax.ErrNotSupported, tag)
	}
	most := make([]int64, len(all))
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, f := range all {
		// Side by side: the call waits for the slowest database, not for one after the other.
		wg.Go(func() {
			most[i], errs[i] = fs.opts.Floors(ctx, f.URL, f.Table, f.Column)
			if errs[i] != nil {
				errs[i] = fmt.Errorf("%s, column %s.%s: %w", f.URL, f.Table, f.Column, errs[i])
			}
		})
	}
	wg.Wait()
	return slices.Max(most), errors.Join(errs...)
}

// unread is the error for a line that cannot be issued from because its columns cannot be
// read. The cause is told in words: it says nothing about the store. Callers over the
// network do not get it, since it may name hosts, so it is logged, once.
func (fs *floors) unread(tag string, err error) error {
	why := hapax.Message(err)
	fs.mu.Lock()
	was := fs.failed[tag]
	if fs.failed == nil {
		fs.failed = map[string]string{}
	}
	// Beyond the bound the log tells of a tag each time, and nothing more is kept.
	if len(fs.failed) < maxFloorAlarms || was != "" {
		fs.failed[tag] = why
	}
	fs.mu.Unlock()
	if was != why {
		fs.log.Error(floorUnread, "tag", tag, "cause", why, "code", string(api.ErrFloorUnread.Code()))
	}
	return fmt.Errorf("%w: tag %q: %s; it is refused until they can be read, or until an operator says where it goes on (hapax tags set %s --floor N --floor-stated)",
		api.ErrFloorUnread, tag, why, signals.Word(tag))
}

// readAgain tells that a tag's columns were read that could not be.
func (fs *floors) readAgain(tag string) {
	fs.mu.Lock()
	_, was := fs.failed[tag]
	delete(fs.failed, tag)
	fs.mu.Unlock()
	if was {
		fs.log.Info(floorRead, "tag", tag)
	}
}

func (fs *floors) settled(tag string) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	_, ok := fs.tags[tag]
	return ok
}

func (fs *floors) settle(tag string) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.tags == nil {
		fs.tags = map[string]struct{}{}
	}
	fs.tags[tag] = struct{}{}
	delete(fs.failed, tag) // an operator may have spoken
}

// keeper returns what knows the witnesses; nil where nobody does.
func (fs *floors) keeper() floorKeeper {
	k, _ := fs.store.Store.(floorKeeper)
	return k
}

// admitLine has the columns of a tag read before its first grant, unless a witness knows
// its line.
func (fs *floors) admitLine(ctx context.Context, tag string) error {
	if fs.settled(tag) {
		return nil
	}
	if define.IsPeriodLine(tag) {
		return nil
	}
	t, err := fs.store.Store.Tag(ctx, tag)
	if err != nil {
		if errors.Is(err, hapax.ErrTagNotFound) {
			return nil // the grant says so
		}
		return err
	}
	return fs.settleLine(ctx, define.Read(t))
}

// settleLine is admitLine for a tag as the store has it.
func (fs *floors) settleLine(ctx context.Context, t define.Tag) error {
	all := t.Says.Floors
	if len(all) == 0 || t.Deleted || t.Kind != hapax.KindSegment {
		fs.settle(t.Name)
		return nil
	}
	founding := ""
	if k := fs.keeper(); k != nil {
		known, _, since, err := k.Known(ctx, t.Name)
		if err != nil {
			return err
		}
		if known {
			fs.settle(t.Name)
			return nil
		}
		// The founding from before the columns are read: what is noted under it does not count for a
		// fleet that is founded meanwhile.
		founding = since
	}
	most, err := fs.highest(ctx, t.Name, all)
	if err != nil {
		return fs.unread(t.Name, err)
	}
	fs.readAgain(t.Name)
	if most >= t.Mark {
		to := most + 1
		if _, err := fs.store.UpdateTag(ctx, t.Name, floorUpdate(to)); err != nil {
			return err
		}
		fs.wasBehind("tag "+t.Name, t.Name, t.Mark, to)
	}
	if k := fs.keeper(); k != nil {
		// Only after the mark is raised: a process that dies in between reads the columns once more.
		if err := k.NoteKnown(ctx, t.Name, "", founding); err != nil {
			return err
		}
	}
	fs.settle(t.Name)
	return nil
}

func floorUpdate(to int64) driver.TagUpdate { return driver.TagUpdate{Floor: &to} }

// wasBehind tells of a mark that was raised.
func (fs *floors) wasBehind(line, about string, from, to int64) {
	fs.log.Warn(FloorRaised, "line", line, "mark_before", from, "mark", to)
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.raised == nil {
		fs.raised = map[string]raised{}
	}
	if len(fs.raised) < maxFloorAlarms {
		fs.raised[about] = raised{fs.now(), from, to}
	}
}

// maxFloorAlarms bounds of how many tags it is kept that their marks were behind.
const maxFloorAlarms = 100

// floorConditions are the alarms for marks that were behind.
func (fs *floors) floorConditions(now time.Time) (all []health.Condition) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for about, r := range fs.raised {
		if now.Sub(r.at) > floorAlarm {
			delete(fs.raised, about)
			continue
		}
		all = append(all, health.Condition{Alarm: health.AlarmFloor, About: about, Detail: fmt.Sprintf("the mark was %d, behind the numbers in its columns, and was raised to %d", r.from, r.to)})
	}
	return all
}

// admitWorkers has the columns of a pool's tags read before this node's first lease on it,
// and moves a request above the time of the newest number.
func (fs *floors) admitWorkers(ctx context.Context, req *hapax.AcquireRequest) error {
	fs.mu.Lock()
	above, done := fs.pools[req.Pool]
	fs.mu.Unlock()
	if !done {
		var err error
		if above, err = fs.settlePool(ctx, req.Pool, req.Layout); err != nil {
			return err
		}
		fs.mu.Lock()
		if fs.pools == nil {
			fs.pools = map[string]time.Time{}
		}
		fs.pools[req.Pool] = above
		fs.mu.Unlock()
	}
	if from := req.Term.Now.Add(-req.Term.Behind); !above.IsZero() && from.Before(above) {
		// A row with a time far ahead would move the pool's workers there, and no mark comes down again.
		if ahead := above.Sub(req.Term.Now); ahead > maxFloorAhead {
			return fmt.Errorf("%w: pool %q: the newest number in a column of its tags is of %s, %v ahead of this clock: correct the clock, or the row",
				api.ErrFloorUnread, req.Pool, above.UTC().Format(time.RFC3339), ahead.Round(time.Second))
		}
		req.Term.Now = above.Add(req.Term.Behind)
	}
	return nil
}

// settlePool returns the time above which the pool's workers go on; zero for any.
func (fs *floors) settlePool(ctx context.Context, pool string, layout hapax.Layout) (above time.Time, err error) {
	tags, err := fs.tagsOfPool(ctx, pool)
	if err != nil {
		return above, err
	}
	for _, t := range tags {
		after, err := fs.settleTimed(ctx, t, layout)
		if err != nil {
			return above, err
		}
		if after.After(above) {
			above = after
		}
	}
	return above, nil
}

// settleTimed is settleLine for a snowflake tag: it returns the time above its newest
// number.
func (fs *floors) settleTimed(ctx context.Context, t define.Tag, layout hapax.Layout) (above time.Time, err error) {
	founding, k := "", fs.keeper()
	if k != nil {
		known, text, since, err := k.Known(ctx, t.Name)
		if err != nil {
			return above, err
		}
		if known {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				above = time.Unix(0, n)
			}
			return above, nil
		}
		founding = since
	}
	all := t.Says.Floors
	if len(all) == 0 {
		return above, nil
	}
	most, err := fs.highest(ctx, t.Name, all)
	if err != nil {
		return above, fs.unread(t.Name, err)
	}
	fs.readAgain(t.Name)
	if above, err = newestOf(t.Name, most, layout); err != nil {
		return above, err
	}
	if !above.IsZero() {
		fs.log.Info(WorkersAbove, "pool", t.Pool, "tag", t.Name, "above", above.UTC().Format(time.RFC3339Nano))
		if above.After(fs.now()) {
			fs.wasBehind("pool "+t.Pool, t.Name, fs.now().UnixMilli(), above.UnixMilli())
		}
	}
	if k != nil {
		text := ""
		if !above.IsZero() {
			text = strconv.FormatInt(above.UnixNano(), 10)
		}
		err = k.NoteKnown(ctx, t.Name, text, founding)
	}
	return above, err
}

// newestOf returns the time after that of the highest number of a layout, which is the
// newest one where the time is the highest field.
func newestOf(tag string, most int64, layout hapax.Layout) (time.Time, error) {
	if most <= 0 {
		return time.Time{}, nil
	}
	for f := range layout.Fields() {
		if f.Name == hapax.FieldTime {
			break
		}
		return time.Time{}, fmt.Errorf("%w: tag %q: in its layout %s the time is not the highest field, so that the highest number in a column is not the newest: take floor_from away", hapax.ErrNotSupported, tag, LayoutName(layout))
	}
	at, err := layout.Time(hapax.ID(most))
	if err != nil {
		return at, fmt.Errorf("%w: tag %q: its column holds %d: %s", api.ErrFloorUnread, tag, most, hapax.Message(err))
	}
	return at.Add(layout.Unit()), nil
}

// tagsOfPool returns the snowflake tags of a pool that have columns, in the store or in the
// options.
func (fs *floors) tagsOfPool(ctx context.Context, pool string) (all []define.Tag, err error) {
	seen := map[string]bool{}
	for after := ""; ; {
		page, err := fs.store.Store.Tags(ctx, after, MaxPage)
		if err != nil {
			return nil, err
		}
		for _, t := range page {
			after = t.Name
			seen[t.Name] = true
			unread := t.Kind == hapax.KindUnreadable
			if unread {
				if t, err = fs.asItWas(ctx, pool, t.Name); err != nil {
					return nil, err
				}
			}
			if t.Deleted || t.Kind != hapax.KindSnowflake || t.Pool != pool {
				continue
			}
			// One that cannot be read may have got columns since; then it is noted how far they were read.
			if def := define.Read(t); unread || len(def.Says.Floors) > 0 {
				all = append(all, def)
			}
		}
		if len(page) < MaxPage {
			break
		}
	}
	for name := range fs.opts.Tags {
		if t, ok := fs.declared(name); ok && !seen[name] && t.Kind == hapax.KindSnowflake && t.Pool == pool && len(t.Says.Floors) > 0 {
			all = append(all, t)
		}
	}
	return all, nil
}

// asItWas returns a tag that could not be read as the fleet knew it. Where nobody knows it, it may be of
// the pool, and have columns with numbers above all that the store has: nothing can be issued then.
func (fs *floors) asItWas(ctx context.Context, pool, name string) (hapax.Tag, error) {
	t, err := fs.store.Store.Tag(ctx, name)
	if err == nil || !errors.Is(err, hapax.ErrStoreCorrupt) {
		return t, err
	}
	if past, ok := fs.store.Store.(pastKeeper); ok {
		if was, known, err := past.Was(ctx, name); err != nil || known {
			return was, err
		}
	}
	return t, fmt.Errorf("pool %q: this node has issued nothing of it yet, and cannot: nobody knows whether tag %q is of this pool, with columns that say from where it goes on: %w", pool, name, err)
}

// readFloors reads the columns that a tag is given, or an operator speaks for, and returns the
// lowest mark that the tag may have then, and what notes that it is known.
func (fs *floors) readFloors(ctx context.Context, t hapax.Tag, given define.Extra) (least int64, note func(context.Context) error, err error) {
	nothing := func(context.Context) error { return nil }
	all, stated := given.NewFloors()
	if len(all) == 0 && !stated {
		return 0, nothing, nil
	}
	k, above, founding := fs.keeper(), "", ""
	if k != nil {
		if _, _, founding, err = k.Known(ctx, t.Name); err != nil {
			return 0, nothing, err
		}
	}
	if !stated {
		most, err := fs.highest(ctx, t.Name, all)
		if errors.Is(err, hapax.ErrStoreUnavailable) { // which says nothing about the store, and may name hosts
			var names []string
			for _, f := range all {
				names = append(names, fmt.Sprintf("%s, %s.%s", f.URL, f.Table, f.Column))
			}
			return 0, nothing, &hapax.ValueError{Field: "floor_from", Value: strings.Join(names, "; "), Allowed: "columns whose database answers this server within three seconds, with the URL that it has", Err: hapax.ErrInvalidArgument}
		}
		if err != nil {
			return 0, nothing, fmt.Errorf("tag %q: %w", t.Name, err)
		}
		if t.Kind == hapax.KindSegment {
			least = most + 1
		} else {
			layout, err := fs.layoutNow(ctx, t.Pool)
			if errors.Is(err, hapax.ErrPoolNotFound) {
				layout, err = fs.opts.layoutOf(t.Pool)
			}
			if err != nil {
				return 0, nothing, err
			}
			newest, err := newestOf(t.Name, most, layout)
			if err != nil {
				return 0, nothing, err
			}
			if !newest.IsZero() {
				above = strconv.FormatInt(newest.UnixNano(), 10)
			}
		}
	}
	if k == nil {
		return least, nothing, nil
	}
	return least, func(ctx context.Context) error {
		if t.Kind == hapax.KindSnowflake {
			fs.mu.Lock()
			delete(fs.pools, t.Pool)
			fs.mu.Unlock()
		}
		return k.NoteKnown(ctx, t.Name, above, founding)
	}, nil
}
