package coord

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// The rows that a beat looks at, besides the process's own.
var (
	FenceKey = Key{driver.TableFence, driver.RowFence}
	JoinsKey = Key{driver.TableGuard, driver.RowJoins}

	ChangesKey = Key{driver.TableGuard, driver.RowChanges} // of a beat alone
)

// A Heartbeat is a driver.Pulse as a space makes it: if the row at Own is at least
// Was, byte by byte, and there is no row at FenceKey, it is raised to Now.
type Heartbeat struct {
	Own      Key
	Was, Now []byte
	Watch    Key // a row that a beat alone looks at in passing, where the space can; without a name: none
}

// A Change is what a beat's step makes of a row, where that is still as it was.
type Change struct {
	Key  Key
	Old  Cell
	Next []byte // nil: it is removed
}

// A BeatAnswer is what a space has found and done.
type BeatAnswer struct {
	Done              bool   // the beat was made, and the changes with it
	Own, Fence, Joins []byte // own and fence only where nothing was done
	Cells             []Cell // of the rows to change, as they are now; they may be missing or unknown
	Primary           string // see driver.Contact

	Changes, Watched []byte // of a beat alone
	Watches          bool   // the row to watch was looked at
}

// cell returns the row of a change as it is now.
func (m BeatAnswer) cell(i int) Cell {
	if i < len(m.Cells) {
		return m.Cells[i]
	}
	return Cell{}
}

// beat makes the beat alone, however often that is lost to others.
func (r *Rows) beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	for lost := 0; ; lost++ {
		sent := time.Now()
		m, err := r.space.Beat(ctx, heartbeatOf(p))
		if err != nil {
			return driver.Contact{}, err
		}
		c, err := contactOf(p, m)
		if err != nil || m.Done || !c.Met {
			return alone(c, p, m, err)
		}
		if err := pause(ctx, lost, time.Since(sent)); err != nil {
			return driver.Contact{}, r.calls.Unavailable(ctx, err)
		}
	}
}

func heartbeatOf(p driver.Pulse) Heartbeat {
	m := Heartbeat{Own: Key{driver.TableBeats, p.Row}, Was: p.Was.Encode(), Now: p.Now.Encode()}
	if p.Watch != "" {
		m.Watch = Key{driver.TableBeats, p.Watch}
	}
	return m
}

// alone is the contact of a beat that nothing came with.
func alone(c driver.Contact, p driver.Pulse, m BeatAnswer, err error) (driver.Contact, error) {
	if err != nil {
		return c, err
	}
	if !m.Watches {
		p.Watch = ""
	}
	return c.Tell(p, m.Changes, m.Watched)
}

func contactOf(p driver.Pulse, m BeatAnswer) (driver.Contact, error) {
	own := m.Own
	if m.Done {
		own = p.Now.Encode()
	}
	c, err := p.Judge(own, m.Fence, m.Joins)
	c.Primary = m.Primary
	return c, err
}

// updateWith is update under a pulse. Where change fails, the beat is made alone.
func (r *Rows) updateWith(ctx context.Context, p driver.Pulse, key Key, change func(raw []byte) ([]byte, error)) (contact driver.Contact, err error) {
	if err := p.Check(); err != nil {
		return contact, err
	}
	err = r.inTurn(ctx, key, func(ctx context.Context, s *slot) error {
		return r.try(ctx, s, key, change, func(cell Cell, next []byte) (bool, Cell, error) {
			m, err := r.space.Beat(ctx, heartbeatOf(p), Change{key, cell, next})
			if err != nil {
				return false, Cell{}, err
			}
			if contact, err = contactOf(p, m); err == nil && !contact.Met {
				err = errNoBeat
			}
			return m.Done, m.cell(0), err
		})
	})
	switch {
	case errors.Is(err, errNoBeat):
		return contact, nil
	case driver.IsOfTag(err), errors.Is(err, errOtherValue):
		ctx, cancel, begun := r.calls.Begin(ctx)
		if begun != nil {
			return driver.Contact{}, begun
		}
		defer cancel()
		contact, met := r.beat(ctx, p)
		if met != nil {
			return driver.Contact{}, met
		}
		return contact, err
	case err != nil:
		return driver.Contact{}, err
	}
	return contact, nil
}

// errNoBeat ends a change whose beat was not made.
var errNoBeat = errors.New("the beat was not made")

// Beat implements driver.Guarding.
func (r *Rows) Beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	if err := p.Check(); err != nil {
		return driver.Contact{}, err
	}
	ctx, cancel, err := r.calls.Begin(ctx)
	if err != nil {
		return driver.Contact{}, err
	}
	defer cancel()
	return r.beat(ctx, p)
}

// AllocateWith implements driver.Guarding. It is as many round trips as Allocate,
// and the space's own for a beat.
func (r *Rows) AllocateWith(ctx context.Context, p driver.Pulse, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, driver.Contact, error) {
	var a hapax.Allocation
	c, err := r.changeTagWith(ctx, p, tag, func(t driver.Tag) (next driver.Tag, err error) {
		a, next, err = driver.Advance(t, n, last)
		return next, err
	})
	if err != nil || !c.Met {
		a = hapax.Allocation{}
	}
	return a, c, err
}

// TagsNamed implements driver.Guarding.
func (r *Rows) TagsNamed(ctx context.Context, names []string) ([]hapax.Tag, error) {
	ctx, cancel, err := r.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	raws, err := r.space.ReadEach(ctx, "", names)
	if err != nil {
		return nil, err
	}
	var tags []hapax.Tag
	for i, raw := range raws {
		if raw == nil {
			continue
		}
		t, err := decodeTag(names[i], raw)
		if err != nil {
			return nil, err
		}
		tags = append(tags, t.Tag)
	}
	return tags, nil
}

// HandBackWith implements driver.Guarding.
func (r *Rows) HandBackWith(ctx context.Context, p driver.Pulse, a hapax.Allocation, next int64) (driver.Contact, error) {
	return r.changeTagWith(ctx, p, a.Tag.Name, func(t driver.Tag) (driver.Tag, error) { return driver.HandBack(t, a, next) })
}

func (r *Rows) changeTagWith(ctx context.Context, p driver.Pulse, name string, f func(driver.Tag) (driver.Tag, error)) (driver.Contact, error) {
	if err := hapax.ValidateName("tag", name); err != nil {
		return driver.Contact{}, err
	}
	return r.updateWith(ctx, p, tagKey(name), tagChange(name, f))
}

// SwapRowWith implements driver.Guarding.
func (r *Rows) SwapRowWith(ctx context.Context, p driver.Pulse, table, name string, old, next []byte) (bool, driver.Contact, error) {
	if err := p.CheckSwap(table, name, old, next); err != nil {
		return false, driver.Contact{}, err
	}
	c, err := r.updateWith(ctx, p, Key{table, name}, func(raw []byte) ([]byte, error) {
		if (raw == nil) != (old == nil) || !bytes.Equal(raw, old) {
			return nil, errOtherValue
		}
		return next, nil
	})
	if errors.Is(err, errOtherValue) {
		return false, c, nil
	}
	return err == nil && c.Met, c, err
}

// Split implements driver.Guarding.
func (r *Rows) Split() bool { return false }

// HealTag implements driver.Healing.
func (r *Rows) HealTag(ctx context.Context, def hapax.Tag) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", def.Name); err != nil {
		return hapax.Tag{}, err
	}
	var healed driver.Tag
	err := r.update(ctx, tagKey(def.Name), func(raw []byte) ([]byte, error) {
		var old driver.Tag
		var err error
		if raw != nil {
			if old, err = decodeTag(def.Name, raw); err != nil {
				return nil, err
			}
		}
		if healed, err = driver.Heal(old, def); err != nil {
			return nil, err
		}
		return encodeTag(healed), nil
	})
	if err != nil {
		return hapax.Tag{}, err
	}
	return healed.Tag, nil
}
