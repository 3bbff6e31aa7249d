package zkstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"path"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/internal/coord"
)

// own is the row of the process that beats on this handle, as it was written last. A
// write of it is on condition of the version that the one before has left, and those who
// only look at it are on condition of that version, too.
type own struct {
	convoy driver.Convoy

	mu    sync.Mutex // guards what follows
	key   coord.Key
	cell  coord.Cell
	found map[coord.Key]coord.Cell // the counters as they were found last
}

// last returns a counter's row, as far as it is known on a link and in a generation.
func (o *own) last(key coord.Key, l *link, generation int32) (cell coord.Cell, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	cell = o.found[key]
	seen, known := cell.Token.(version)
	return cell, known && seen.link == l && seen.generation == generation
}

func (o *own) note(key coord.Key, cell coord.Cell) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.found == nil {
		o.found = map[coord.Key]coord.Cell{}
	}
	o.found[key] = cell
}

// take returns the row, if it is this one, and forgets it where it is going to be
// written.
func (o *own) take(key coord.Key, writes bool) (cell coord.Cell) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.key == key {
		cell = o.cell
	}
	if writes {
		o.cell = coord.Cell{}
	}
	return cell
}

func (o *own) put(key coord.Key, cell coord.Cell) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.key, o.cell = key, cell
}

// Beat implements coord.Space. It is one multi, which makes the fence and removes it
// again, since that is how to see in it that there is none. It is on condition that the
// joins, and of a beat alone the changes, are what they were last; where that is not known it
// is followed by a get of them, which the server answers from a state that has the multi. It
// looks at no row to watch, which moves with each beat of its process.
func (s *space) Beat(ctx context.Context, m coord.Heartbeat, changes ...coord.Change) (coord.BeatAnswer, error) {
	beat, leads, ended, err := s.own.convoy.Join(ctx, m.Own.Name, m.Now)
	if err != nil {
		return coord.BeatAnswer{}, s.unavailable(ctx, err)
	}
	m.Now = beat
	met, err := s.beat(ctx, m, leads, changes)
	ended(err == nil && met.Done)
	return met, err
}

func (s *space) beat(ctx context.Context, m coord.Heartbeat, leads bool, changes []coord.Change) (coord.BeatAnswer, error) {
	l, err := s.current(ctx)
	if err != nil {
		return coord.BeatAnswer{}, err
	}
	generation := l.generation.Load()
	for i, c := range changes {
		seen := c.Old.Token.(version)
		if seen.link != l || i > 0 && seen.generation != generation {
			return s.noBeat(ctx, l, m)
		}
		generation = seen.generation
	}
	least := m.Now
	if leads {
		least = m.Was
	}
	mine := s.own.take(m.Own, leads)
	seen, isKnown := mine.Token.(version)
	if !isKnown || seen.link != l || seen.generation != generation || bytes.Compare(mine.Raw, least) < 0 {
		if mine, err = s.Read(ctx, m.Own); err != nil {
			return coord.BeatAnswer{}, err
		}
		if seen = mine.Token.(version); seen.link != l || seen.generation != generation || bytes.Compare(mine.Raw, m.Was) < 0 {
			return s.noBeat(ctx, l, m)
		}
	}
	ops, renewed := []any{
		&zk.CreateRequest{Path: s.node(coord.FenceKey), Data: []byte{}, Acl: s.acl},
		&zk.DeleteRequest{Path: s.node(coord.FenceKey), Version: 0},
	}, false
	add := func(key coord.Key, old coord.Cell, next []byte) int {
		more, renews := s.change(key, old, next)
		ops, renewed = append(ops, more...), renewed || renews
		return len(ops) - 1
	}
	mineAt := -1
	if bytes.Compare(mine.Raw, m.Now) < 0 {
		mineAt = add(m.Own, mine, m.Now)
		mine.Raw = m.Now
	} else {
		ops = append(ops, &zk.CheckVersionRequest{Path: s.node(m.Own), Version: seen.of})
	}
	rowsAt, writes := make([]int, len(changes)), map[coord.Key]bool{}
	for i, c := range changes {
		rowsAt[i] = add(c.Key, c.Old, c.Next)
		writes[c.Key] = true
	}
	counters, known := []coord.Key{coord.JoinsKey}, map[coord.Key]coord.Cell{}
	if len(changes) == 0 {
		counters = append(counters, coord.ChangesKey)
	}
	for _, key := range counters {
		if cell, ok := s.own.last(key, l, generation); ok && !writes[key] {
			known[key] = cell
			ops = append(ops, &zk.CheckVersionRequest{Path: s.node(key), Version: cell.Token.(version).of})
		}
	}
	replies, err := s.step(ctx, l, generation, renewed, ops)
	if errors.Is(err, zk.ErrNoNode) {
		parents := map[string]bool{path.Dir(s.node(coord.FenceKey)): true}
		for _, c := range changes {
			parents[path.Dir(s.node(c.Key))] = true
		}
		for parent := range parents {
			if made := s.create(ctx, l, parent, []byte{}); made != nil && !errors.Is(made, zk.ErrNodeExists) {
				return coord.BeatAnswer{}, s.unavailable(ctx, made)
			}
		}
		replies, err = s.step(ctx, l, generation, renewed, ops)
	}
	switch {
	case isRefused(err):
		s.own.put(m.Own, coord.Cell{})
		s.own.note(coord.JoinsKey, coord.Cell{})
		s.own.note(coord.ChangesKey, coord.Cell{})
		return s.noBeat(ctx, l, m)
	case err != nil:
		return coord.BeatAnswer{}, s.unavailable(ctx, err)
	}
	if l.given {
		for _, r := range replies {
			if r.Stat != nil {
				l.answers.note(r.Stat.Mzxid)
			}
		}
	}
	met := coord.BeatAnswer{Done: true, Primary: l.primary(), Cells: make([]coord.Cell, len(changes))}
	for i, c := range changes {
		met.Cells[i] = coord.Cell{Raw: c.Next, Known: !renewed, Token: written(l, generation, replies, rowsAt[i])}
	}
	if leads && !renewed {
		if mineAt >= 0 {
			mine.Token = written(l, generation, replies, mineAt)
		}
		s.own.put(m.Own, mine)
	}
	for _, key := range counters {
		cell, ok := known[key]
		if !ok {
			raw, v, err := s.peek(ctx, l, s.node(key))
			if err != nil {
				return met, err
			}
			cell = coord.Cell{Raw: raw, Known: true, Token: version{l, generation, v}}
			if raw != nil {
				s.own.note(key, cell)
			}
		}
		if key == coord.JoinsKey {
			met.Joins = cell.Raw
		} else {
			met.Changes = cell.Raw
		}
	}
	return met, nil
}

// written is the version that a write has left, by its place among the replies of a
// multi that has the look at the store's identity before it.
func written(l *link, generation int32, replies []zk.MultiResponse, at int) version {
	v := version{link: l, generation: generation}
	if at >= 0 && at+1 < len(replies) && replies[at+1].Stat != nil {
		v.of = replies[at+1].Stat.Version
	}
	return v
}

// noBeat reads why a beat was not made: the rows as they are now.
func (s *space) noBeat(ctx context.Context, l *link, m coord.Heartbeat) (met coord.BeatAnswer, err error) {
	l.stale.Store(true)
	for _, r := range []struct {
		key coord.Key
		to  *[]byte
	}{{m.Own, &met.Own}, {coord.FenceKey, &met.Fence}, {coord.JoinsKey, &met.Joins}} {
		cell, err := s.Read(ctx, r.key)
		if err != nil {
			return coord.BeatAnswer{}, err
		}
		*r.to = cell.Raw
	}
	return met, nil
}

// change returns what writes next, or removes the row if next is nil, if the row is
// old, and whether the store's generation has to be raised with it.
func (s *space) change(key coord.Key, old coord.Cell, next []byte) (ops []any, renews bool) {
	node, seen := s.node(key), old.Token.(version)
	create := &zk.CreateRequest{Path: node, Data: next, Acl: s.acl}
	remove := &zk.DeleteRequest{Path: node, Version: seen.of}
	switch {
	case old.Raw == nil:
		return []any{create}, false
	case next == nil:
		return []any{remove}, true
	case seen.of >= s.renewAt, seen.of < 0:
		return []any{remove, create}, true
	}
	return []any{&zk.SetDataRequest{Path: node, Data: next, Version: seen.of}}, false
}

// step makes changes in one atomic step, on condition that the store is of the
// generation, which it raises if they ask for it. Its own reply comes first.
func (s *space) step(ctx context.Context, l *link, generation int32, renews bool, ops []any) ([]zk.MultiResponse, error) {
	var store any = &zk.CheckVersionRequest{Path: s.storeNode(), Version: generation}
	if renews {
		store = &zk.SetDataRequest{Path: s.storeNode(), Data: s.identity(), Version: generation}
	}
	replies, err := s.multi(ctx, l, append([]any{store}, ops...)...)
	if err == nil && renews {
		l.generation.Store(replies[0].Stat.Version)
	}
	return replies, err
}

// isRefused reports whether a step was refused because something is not as it was
// expected to be.
func isRefused(err error) bool {
	return errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNodeExists)
}

// multi makes changes in one atomic step.
func (s *space) multi(ctx context.Context, l *link, ops ...any) ([]zk.MultiResponse, error) {
	replies, err := call(ctx, s, l, func(conn *zk.Conn) ([]zk.MultiResponse, error) { return conn.Multi(ops...) })
	for _, reply := range replies {
		err = cmp.Or(err, reply.Error)
	}
	return replies, err
}
