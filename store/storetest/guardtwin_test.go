package storetest

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A guarding keeper follows these rules, which can be broken.
type guardRules struct {
	judge func(p driver.Pulse, own, fence, joins []byte) (driver.Contact, error)
	step  func(p driver.Pulse, own []byte) []byte // the row after the beat
	heal  func(old driver.Tag, def hapax.Tag) (driver.Tag, error)
	tell  func(c driver.Contact, p driver.Pulse, changes, watched []byte) (driver.Contact, error) // nil: driver.Contact.Tell

	blind     bool                                       // the change is made whether the beat is met or not
	early     bool                                       // the change is made without a beat of its own
	lazy      bool                                       // a swap of another value makes no beat
	any       bool                                       // own row and fence can be swapped
	inRow     bool                                       // of many hand-backs none is made after one that is not held
	allGiven  bool                                       // of many hand-backs all are said to be made
	tokenless bool                                       // many hand-backs compare no token
	sorted    bool                                       // rows by name come in another order
	halfway   bool                                       // of several swaps those before the first that fails are made
	behind    int64                                      // tags by name are read as if less was granted
	late      func()                                     // called between the judgement and the change
	worker    func(w driver.Worker) driver.Worker        // what a worker is healed to
	after     func(ctx context.Context, w *storedWorker) // edits the healed worker's row
}

func rightRules() guardRules {
	return guardRules{
		judge: driver.Pulse.Judge,
		step: func(p driver.Pulse, own []byte) []byte {
			if now := p.Now.Encode(); bytes.Compare(own, now) < 0 {
				return now
			}
			return own
		},
		heal: driver.Heal,
	}
}

// withBeat makes the beat and calls f.
func (k *keeper) withBeat(ctx context.Context, p driver.Pulse, f func() error) (driver.Contact, error) {
	if err := p.Check(); err != nil {
		return driver.Contact{}, err
	}
	k.meeting.Lock()
	defer k.meeting.Unlock()
	row := func(table, name string) []byte {
		raw, _ := k.twin.Store.Row(ctx, table, name)
		return raw
	}
	own := row(driver.TableBeats, p.Row)
	c, err := k.rules.judge(p, own, row(driver.TableFence, driver.RowFence), row(driver.TableGuard, driver.RowJoins))
	if err != nil || !c.Met && !k.rules.blind {
		return c, err
	}
	if k.rules.late != nil {
		k.meeting.Unlock()
		k.rules.late()
		k.meeting.Lock()
	}
	if next := k.rules.step(p, own); c.Met && !bytes.Equal(next, own) {
		if _, err := k.twin.Store.SwapRow(ctx, driver.TableBeats, p.Row, own, next); err != nil {
			return c, err
		}
	}
	return c, f()
}

func (k *keeper) Beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	c, err := k.withBeat(ctx, p, func() error { return nil })
	if err != nil || !c.Met {
		return c, err
	}
	k.meeting.Lock()
	defer k.meeting.Unlock()
	changes, _ := k.twin.Store.Row(ctx, driver.TableGuard, driver.RowChanges)
	watched, _ := k.twin.Store.Row(ctx, driver.TableBeats, p.Watch)
	if k.rules.tell != nil {
		return k.rules.tell(c, p, changes, watched)
	}
	return c.Tell(p, changes, watched)
}

func (k *keeper) AllocateAllWith(ctx context.Context, p driver.Pulse, all []driver.AllocateOf) (made []driver.Allocated, c driver.Contact, err error) {
	if k.rules.early {
		p.Now = p.Was
	}
	c, err = k.withBeat(ctx, p, func() error {
		made = make([]driver.Allocated, len(all))
		for i, of := range all {
			a, err := k.Allocate(ctx, of.Tag, of.N, of.Last)
			if err != nil && k.rules.inRow {
				return err
			}
			made[i] = driver.Allocated{Allocation: a, Err: err}
		}
		return nil
	})
	return made, c, err
}

func (k *keeper) TagsNamed(ctx context.Context, names []string) (tags []hapax.Tag, err error) {
	for _, name := range names {
		if t, err := k.Tag(ctx, name); err == nil {
			t.Mark -= k.rules.behind
			tags = append(tags, t)
		}
	}
	return tags, nil
}

func (k *keeper) HandBackAllWith(ctx context.Context, p driver.Pulse, all []driver.HandBackOf) (given []bool, c driver.Contact, err error) {
	given = make([]bool, len(all))
	for _, h := range all {
		if err := driver.CheckHandBack(h.Allocation, h.Next); err != nil {
			return given, c, err
		}
	}
	if k.rules.early {
		p.Now = p.Was
	}
	c, err = k.withBeat(ctx, p, func() error {
		for i, h := range all {
			if k.rules.tokenless {
				h.Tag.Token = k.token(h.Tag.Name)
			}
			given[i] = k.HandBack(ctx, h.Allocation, h.Next) == nil
			if !given[i] && k.rules.inRow {
				return nil
			}
			given[i] = given[i] || k.rules.allGiven
		}
		return nil
	})
	return given, c, err
}

func (k *keeper) token(tag string) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept[tag].Token
}

func (k *keeper) SwapRowWith(ctx context.Context, p driver.Pulse, table, name string, old, next []byte) (ok bool, c driver.Contact, err error) {
	if err := p.CheckSwap(table, name, old, next); err != nil && !k.rules.any {
		return false, driver.Contact{}, err
	}
	if raw, err := k.twin.Store.Row(ctx, table, name); k.rules.lazy && err == nil && !bytes.Equal(raw, old) {
		p.Now = p.Was
	}
	c, err = k.withBeat(ctx, p, func() (err error) { ok, err = k.twin.Store.SwapRow(ctx, table, name, old, next); return err })
	return ok, c, err
}

func (k *keeper) Split() bool { return false }

func (k *keeper) HealTag(_ context.Context, def hapax.Tag) (hapax.Tag, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	healed, err := k.rules.heal(k.kept[def.Name], def)
	if err == nil {
		k.kept[def.Name] = healed
	}
	return healed.Tag, err
}

func (k *keeper) HealWorker(ctx context.Context, layout string, w driver.Worker) (driver.Worker, error) {
	if k.rules.worker != nil {
		w = k.rules.worker(w)
	}
	healed, err := k.Leases.HealWorker(ctx, layout, w)
	if err == nil && k.rules.after != nil {
		_, err = k.edit(ctx, hapax.Lease{Pool: w.Pool, Worker: w.ID}, func(row *storedWorker) { k.rules.after(ctx, row) })
	}
	return healed, err
}

func (k *keeper) Tags(_ context.Context, after string, limit int) (page []hapax.Tag, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range sortedNames(k.kept) {
		if name > after && len(page) < limit {
			page = append(page, k.kept[name].Tag)
		}
	}
	return page, nil
}

func (k *keeper) RowsNamed(ctx context.Context, keys ...driver.Key) ([][]byte, error) {
	values := make([][]byte, len(keys))
	for i, key := range keys {
		values[i], _ = k.Row(ctx, key.Table, key.Name)
	}
	if k.rules.sorted {
		slices.SortFunc(values, bytes.Compare)
	}
	return values, nil
}

func (k *keeper) SwapRows(ctx context.Context, all ...driver.Swap) (bool, error) {
	known := map[driver.Key]bool{}
	for _, swap := range all {
		if known[swap.Key] {
			return false, fmt.Errorf("%w: twice", hapax.ErrInvalidArgument)
		}
		known[swap.Key] = true
		if now, _ := k.Row(ctx, swap.Table, swap.Name); !k.rules.halfway && ((now == nil) != (swap.Old == nil) || !bytes.Equal(now, swap.Old)) {
			return false, nil
		}
	}
	for _, swap := range all {
		if (swap.Old == nil) == (swap.Next == nil) && bytes.Equal(swap.Old, swap.Next) {
			continue
		}
		if ok, err := k.SwapRow(ctx, swap.Table, swap.Name, swap.Old, swap.Next); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}
