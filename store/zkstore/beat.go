package zkstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax/store/driver"
)

// lastOf returns a row as it was written or seen last on the link; not a known one where nothing is.
func (l *link) lastOf(key driver.Key) driver.Cell {
	kept, _ := l.last.Load(key)
	cell, _ := kept.(driver.Cell)
	return cell
}

// Step implements driver.KV. It is one multi. Where it raises a row, that is the beat of
// this handle's process, and the steps of the handle share beats.
func (s *space) Step(ctx context.Context, step driver.Step) (driver.Result, error) {
	if len(step.Raise) == 0 {
		return s.sifted(ctx, step, false)
	}
	first := step.Raise[0]
	beat, leads, ended, err := s.convoy.Join(ctx, first.Key.Name, first.Value)
	if err != nil {
		return driver.Result{}, s.unavailable(ctx, err)
	}
	// A copy, since the convoy's beat may be higher than the caller's.
	step.Raise = slices.Clone(step.Raise)
	step.Raise[0].Value = beat
	r, err := s.sifted(ctx, step, leads)
	ended(err == nil && r.Met)
	return r, err
}

// raceMost is how often a step that only raises is tried against others that write its row.
const raceMost = 10

// onlyRaises reports whether a step depends on nothing but rows that are to be raised.
func onlyRaises(step driver.Step) bool {
	return len(step.Raise) > 0 && len(step.If)+len(step.Then)+len(step.Each)+len(step.Look) == 0
}

// sifted makes a step. A multi is all or nothing: where it was refused, those of Each whose rows
// are others now are left out of the next attempt.
func (s *space) sifted(ctx context.Context, step driver.Step, leads bool) (driver.Result, error) {
	all := step.Each
	outcomes := make([]driver.Outcome, len(all))
	left := make([]int, len(all)) // places of step.Each in all
	for i := range left {
		left[i] = i
	}
	for attempt := 1; ; attempt++ {
		r, err := s.try(ctx, step, leads)
		if err != nil {
			return driver.Result{}, err
		}
		// The multi compares versions, and so is refused, too, where somebody else has written a
		// row between its reading and the multi: a raise, which holds whatever the row is, is
		// made again.
		if !r.Met && attempt < raceMost && onlyRaises(step) {
			continue
		}
		if r.Met || len(left) == 0 {
			for i, at := range left {
				outcomes[at] = r.Each[i]
			}
			r.Each = outcomes
			return r, nil
		}
		keys := make([]driver.Key, len(left))
		for i, c := range step.Each {
			keys[i] = c.Key
		}
		now, err := s.Get(ctx, driver.Current, keys...)
		if err != nil {
			return driver.Result{}, err
		}
		var each []driver.Change
		var still []int
		for i, c := range step.Each {
			if outcomes[left[i]] = (driver.Outcome{Now: now[i]}); now[i].Version == c.Old.Version {
				each, still = append(each, c), append(still, left[i])
			}
		}
		if len(each) == len(step.Each) { // something else is not as it was
			r.Each = outcomes
			return r, nil
		}
		step.Each, left = each, still
	}
}

// try makes a step as one multi, which makes a row that is not to be there, and removes it again,
// since that is how to see in it that there is none. It is on condition that the
// counters that are looked at are what they were last; where that is not known it
// is followed by a get of them, in the same round trip, which the server answers from a state that has
// the multi. It looks at no row of a process, which moves with each of its beats. Where the result is not
// met, nothing is told of the changes.
func (s *space) try(ctx context.Context, step driver.Step, leads bool) (driver.Result, error) {
	l, err := s.current(ctx)
	if err != nil {
		return driver.Result{}, err
	}
	changes := slices.Concat(step.Then, step.Each)
	p := plan{space: s, link: l, generation: l.generation.Load(), writes: map[driver.Key]bool{}, mineAt: -1}
	// Versions count in the generation in which they were seen: the multi asks for that one, not for the latest.
	if at := slices.IndexFunc(changes, func(c driver.Change) bool { return c.Old.Version != nil }); at >= 0 {
		p.generation = changes[at].Old.Version.(version).generation
	}
	for _, c := range changes {
		if c.Old.Version == nil && c.Old.Value == nil { // a guess; nothing that is there is written over
			continue
		}
		if !p.sees(c.Old) {
			return s.refused(ctx, l, step)
		}
	}
	if ok, err := p.begin(ctx, step, leads); err != nil {
		return driver.Result{}, err
	} else if !ok {
		return s.refused(ctx, l, step)
	}
	rowsAt := make([]int, len(changes))
	for i, c := range changes {
		rowsAt[i] = p.change(c.Key, c.Old, c.Next)
	}
	looked := make([]driver.Cell, len(step.Look))
	own := len(p.ops)
	for i, key := range step.Look {
		if cell := l.lastOf(key); key.Table == driver.TableGuard && p.sees(cell) && !p.writes[key] {
			looked[i] = cell
			p.check(key, cell)
		}
	}
	replies, err := p.look(ctx, step.Look, looked)
	if isRefused(err) && failedAt(replies) > own { // a counter alone has moved: all are read after the step
		p.ops = p.ops[:own]
		clear(looked)
		replies, err = p.look(ctx, step.Look, looked)
	}
	switch {
	case isRefused(err):
		l.last.Clear() // everything is read again
		return s.refused(ctx, l, step)
	case err != nil:
		return driver.Result{}, s.unavailable(ctx, err)
	}
	r := driver.Result{Met: true, Primary: l.primary(), Look: looked}
	for i, c := range changes {
		now := driver.Cell{Value: c.Next, Known: !p.renews, Version: p.written(replies, rowsAt[i])}
		r.Each = append(r.Each, driver.Outcome{Done: true, Now: now})
		if c.Next != nil && (c.Key.Table == driver.TableGuard || c.Key.Table == driver.TableBeats && c.Old.Value == nil) {
			l.last.Store(c.Key, now) // a row that the next step looks at, or raises
		}
	}
	r.Then, r.Each = r.Each[:len(step.Then):len(step.Then)], r.Each[len(step.Then):]
	if leads && !p.renews {
		if p.mineAt >= 0 {
			p.mine.Version = p.written(replies, p.mineAt)
		}
		l.last.Store(step.Raise[0].Key, p.mine)
	}
	return r, nil
}

// look commits the step, and reads those rows that it does not look at itself.
func (p *plan) look(ctx context.Context, keys []driver.Key, looked []driver.Cell) ([]zk.MultiResponse, error) {
	var nodes []string
	var at []int
	for i, key := range keys {
		if !looked[i].Known && key.Table != driver.TableBeats {
			nodes, at = append(nodes, p.space.node(key)), append(at, i)
		}
	}
	replies, cells, err := p.commit(ctx, nodes...)
	if err != nil {
		return replies, err
	}
	for i, cell := range cells {
		looked[at[i]] = cell
		if key := keys[at[i]]; cell.Value != nil && key.Table == driver.TableGuard {
			p.link.last.Store(key, cell)
		}
	}
	return replies, nil
}

// failedAt is the place of the operation that a multi was refused for; -1: the server does not tell.
func failedAt(replies []zk.MultiResponse) int {
	return slices.IndexFunc(replies, func(r zk.MultiResponse) bool { return r.Error != nil })
}

// A plan is the multi of a step, as it is put together.
type plan struct {
	space      *space
	link       *link
	generation int32 // that the store is to be of

	ops    []any
	renews bool // the generation has to be raised
	writes map[driver.Key]bool

	mine   driver.Cell // the first row that is raised, as it is to be
	mineAt int         // where it is written; -1: it is not
}

// sees reports whether a cell's version counts in the plan.
func (p *plan) sees(cell driver.Cell) bool {
	seen, ok := cell.Version.(version)
	return ok && seen.link == p.link && seen.generation == p.generation
}

// change adds a change of a row, and returns where it stands.
func (p *plan) change(key driver.Key, old driver.Cell, next []byte) int {
	ops, renews := p.space.change(key, old, next)
	p.ops, p.renews = append(p.ops, ops...), p.renews || renews
	p.writes[key] = true
	return len(p.ops) - 1
}

// check adds the condition that a row that is there is as it was.
func (p *plan) check(key driver.Key, cell driver.Cell) {
	p.ops = append(p.ops, &zk.CheckVersionRequest{Path: p.space.node(key), Version: cell.Version.(version).of})
}

// begin adds the conditions of a step and the rows that it raises. It reports false where
// they do not hold.
func (p *plan) begin(ctx context.Context, step driver.Step, leads bool) (bool, error) {
	rows, err := p.rows(ctx, step, leads)
	if err != nil {
		return false, err
	}
	for _, c := range step.If {
		switch {
		case c.Least != nil:
			cell := rows[c.Key]
			if !p.sees(cell) || bytes.Compare(cell.Value, c.Least) < 0 {
				return false, nil
			}
			if !raises(step, c.Key) { // else its write has the condition
				p.check(c.Key, cell)
			}
		case c.Same.Value != nil:
			if !p.sees(c.Same) {
				return false, nil
			}
			p.check(c.Key, c.Same)
		default:
			node := p.space.node(c.Key)
			p.ops = append(p.ops, &zk.CreateRequest{Path: node, Data: []byte{}, Acl: p.space.acl}, &zk.DeleteRequest{Path: node, Version: 0})
		}
	}
	for i, r := range step.Raise {
		cell, at := rows[r.Key], -1
		if !p.sees(cell) {
			return false, nil
		}
		if bytes.Compare(cell.Value, r.Value) < 0 {
			at = p.change(r.Key, cell, r.Value)
			cell.Value = r.Value
		} else {
			p.check(r.Key, cell)
		}
		if i == 0 {
			p.mine, p.mineAt = cell, at
		}
	}
	return true, nil
}

// rows returns the rows that are to be at least something, or raised: the first of the raised ones
// as it was written last, where that is enough, and the others as they are.
func (p *plan) rows(ctx context.Context, step driver.Step, leads bool) (map[driver.Key]driver.Cell, error) {
	rows := map[driver.Key]driver.Cell{}
	if len(step.Raise) > 0 {
		first := step.Raise[0]
		least := first.Value
		for _, c := range step.If {
			if leads && c.Key == first.Key && c.Least != nil {
				least = c.Least
			}
		}
		if cell := p.link.lastOf(first.Key); p.sees(cell) && bytes.Compare(cell.Value, least) >= 0 {
			rows[first.Key] = cell
		}
		if leads { // until the outcome is known
			p.link.last.Store(first.Key, driver.Cell{})
		}
	}
	var keys []driver.Key
	add := func(key driver.Key) {
		if _, there := rows[key]; !there {
			rows[key] = driver.Cell{}
			keys = append(keys, key)
		}
	}
	for _, c := range step.If {
		if c.Least != nil {
			add(c.Key)
		}
	}
	for _, r := range step.Raise {
		add(r.Key)
	}
	if len(keys) == 0 {
		return rows, nil
	}
	cells, err := p.space.Get(ctx, driver.Current, keys...)
	for i, cell := range cells {
		rows[keys[i]] = cell
	}
	return rows, err
}

// raises reports whether a step raises a row.
func raises(step driver.Step, key driver.Key) bool {
	return slices.ContainsFunc(step.Raise, func(r driver.Put) bool { return r.Key == key })
}

// written is the version that a write has left, by its place among the replies of the
// multi, which has the look at the store's identity before it.
func (p *plan) written(replies []zk.MultiResponse, at int) version {
	v := version{link: p.link, generation: p.generation}
	if at >= 0 && at+1 < len(replies) && replies[at+1].Stat != nil {
		v.of = replies[at+1].Stat.Version
	}
	return v
}

// refused reads why a step was not done: the rows of its conditions, and those that it looks
// at, as they are now.
func (s *space) refused(ctx context.Context, l *link, step driver.Step) (driver.Result, error) {
	l.stale.Store(true)
	r := driver.Result{Then: make([]driver.Outcome, len(step.Then)), Each: make([]driver.Outcome, len(step.Each)), Look: make([]driver.Cell, len(step.Look))}
	keys := make([]driver.Key, len(step.If), len(step.If)+len(step.Look))
	for i, c := range step.If {
		keys[i] = c.Key
	}
	keys = append(keys, step.Look...)
	cells, err := s.Get(ctx, driver.Current, keys...)
	if err != nil {
		return driver.Result{}, err
	}
	for i, key := range keys {
		if cells[i].Value != nil && (key.Table == driver.TableGuard || raises(step, key)) {
			l.last.Store(key, cells[i]) // the next attempt need not read it again
		}
	}
	r.If, r.Look = cells[:len(step.If):len(step.If)], cells[len(step.If):]
	return r, nil
}

// change returns what writes next, or removes the row if next is nil, if the row is
// old, and whether the store's generation has to be raised with it.
func (s *space) change(key driver.Key, old driver.Cell, next []byte) (ops []any, renews bool) {
	node := s.node(key)
	seen, _ := old.Version.(version) // a row that is missing may have none
	create := &zk.CreateRequest{Path: node, Data: next, Acl: s.acl}
	remove := &zk.DeleteRequest{Path: node, Version: seen.of}
	switch {
	case old.Value == nil:
		return []any{create}, false
	case next == nil:
		return []any{remove}, true
	case seen.of >= s.renewAt, seen.of < 0:
		return []any{remove, create}, true
	}
	return []any{&zk.SetDataRequest{Path: node, Data: next, Version: seen.of}}, false
}

// commit makes the changes in one atomic step, on condition that the store is of the plan's
// generation, which it raises if they ask for it. Its own reply comes first. In the same round trip
// it reads nodes as they are after the step.
func (p *plan) commit(ctx context.Context, after ...string) ([]zk.MultiResponse, []driver.Cell, error) {
	s := p.space
	var store any = &zk.CheckVersionRequest{Path: s.storeNode(), Version: p.generation}
	if p.renews {
		store = &zk.SetDataRequest{Path: s.storeNode(), Data: s.identity(), Version: p.generation}
	}
	ops := append([]any{store}, p.ops...)
	replies, cells, err := s.multi(ctx, p.link, ops, after)
	if errors.Is(err, zk.ErrNoNode) { // or above one that is to be made
		// The nodes above hold nothing, so that they may be made outside of the step, and stay if it fails.
		made := s.create(ctx, p.link, p.above()...)
		replies, cells, err = s.multi(ctx, p.link, ops, after)
		failed := errors.Join(made()...)
		if errors.Is(err, zk.ErrNoNode) && failed != nil {
			err = failed
		}
	}
	if err == nil && p.renews {
		p.link.generation.Store(replies[0].Stat.Version)
	}
	return replies, cells, err
}

// above returns the nodes between the one above all and those that are to be made, each after the
// one above it.
func (p *plan) above() (all []madeNode) {
	for _, op := range p.ops {
		c, ok := op.(*zk.CreateRequest)
		if !ok {
			continue
		}
		for _, n := range above(c.Path) {
			known := slices.ContainsFunc(all, func(other madeNode) bool { return other.path == n.path })
			if !known && strings.HasPrefix(n.path, p.space.base+"/") {
				all = append(all, n)
			}
		}
	}
	return all
}

// isRefused reports whether a step was refused because something is not as it was
// expected to be.
func isRefused(err error) bool {
	return errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNodeExists)
}

// multi makes changes in one atomic step, and reads nodes as they are after it.
func (s *space) multi(ctx context.Context, l *link, ops []any, after []string) ([]zk.MultiResponse, []driver.Cell, error) {
	wait := send(ctx, l, opMulti, func(conn *zk.Conn) ([]zk.MultiResponse, error) { return conn.Multi(ops...) })
	cells, failed := s.cells(ctx, l, driver.Lagging, after...) // the server has done the step by then
	replies, err := wait()
	for _, reply := range replies {
		if err = cmp.Or(err, reply.Error); s.given != nil && reply.Stat != nil { // no connection tells of it
			l.answers.note(reply.Stat.Mzxid)
		}
	}
	return replies, cells, cmp.Or(err, failed)
}
