package driver

import (
	"context"

	"github.com/hapax-id/hapax"
)

// A grant of numbers, and a hand-back, have one form: those of many tags in one call, under a
// pulse or without.

// An AllocateOf is one allocation among others.
type AllocateOf struct {
	Tag  string
	N    int64
	Last hapax.GrantKey
}

// An Allocated is what became of an allocation among others.
type Allocated struct {
	hapax.Allocation
	Err error // one that IsOfTag reports true of; nil: it was made
}

// A HandBackOf is one hand-back among others: the numbers of an allocation from Next on.
type HandBackOf struct {
	hapax.Allocation
	Next int64
}

// Allocate implements hapax.SegmentStore. It is one round trip while nobody
// else has changed the tag since this handle last saw it.
func (b *Base) Allocate(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
	made, _, err := b.allocate(ctx, nil, []AllocateOf{{tag, n, last}})
	if err != nil {
		return hapax.Allocation{}, err
	}
	return made[0].Allocation, made[0].Err
}

// AllocateAllWith implements [Guarding]. It is as many round trips as Allocate, for each hundred tags.
func (b *Base) AllocateAllWith(ctx context.Context, p Pulse, all []AllocateOf) ([]Allocated, Contact, error) {
	made, contact, err := b.allocate(ctx, &p, all)
	if err != nil || !contact.Met {
		return nil, contact, err
	}
	return made, contact, nil
}

func (b *Base) allocate(ctx context.Context, p *Pulse, all []AllocateOf) ([]Allocated, Contact, error) {
	made := make([]Allocated, len(all))
	var changes []*rowChange
	of := make(map[string][]int, len(all))
	for i, one := range all {
		if err := hapax.ValidateName("tag", one.Tag); err != nil {
			return nil, Contact{}, err
		}
		// Those of one tag are one change, because a step may name a row once.
		if of[one.Tag] = append(of[one.Tag], i); len(of[one.Tag]) == 1 {
			changes = append(changes, &rowChange{key: tagKey(one.Tag), to: func(row held) (held, error) {
				return advanceAll(one.Tag, row, all, made, of[one.Tag])
			}})
		}
	}
	contact, err := b.change(ctx, p, changes...)
	return made, contact, err
}

// advanceAll makes those of the allocations that are of one tag, and returns its row; an error
// where none can be made.
func advanceAll(tag string, row held, all []AllocateOf, made []Allocated, of []int) (held, error) {
	t, err := row.tagNamed(tag)
	if err == nil && t.Name == "" {
		err = notFound(tag)
	}
	readable, advanced := err == nil, false
	for _, i := range of {
		var a hapax.Allocation
		if readable {
			a, t, err = Advance(t, all[i].N, all[i].Last)
		}
		// Written over by each call: where the row was lost to others, keys and grants are made anew.
		made[i] = Allocated{a, err}
		advanced = advanced || err == nil
	}
	if !advanced {
		return held{}, err
	}
	return heldTag(t), nil
}

// HandBack implements hapax.SegmentStore.
func (b *Base) HandBack(ctx context.Context, a hapax.Allocation, next int64) error {
	c, err := HandBackOf{a, next}.change()
	if err != nil {
		return err
	}
	return b.update(ctx, c)
}

// HandBackAllWith implements [Guarding]. It is a step for each hundred tags, as long
// as nobody else has changed them since this handle last saw them.
func (b *Base) HandBackAllWith(ctx context.Context, p Pulse, all []HandBackOf) (given []bool, contact Contact, err error) {
	changes := make([]*rowChange, len(all))
	for i, h := range all {
		if changes[i], err = h.change(); err != nil {
			return nil, contact, err
		}
	}
	contact, err = b.change(ctx, &p, changes...)
	given = make([]bool, len(all))
	for i, c := range changes {
		given[i] = c.done
	}
	return given, contact, err
}

// change is the hand-back as the change of the tag's row.
func (h HandBackOf) change() (*rowChange, error) {
	if err := CheckHandBack(h.Allocation, h.Next); err != nil {
		return nil, err
	}
	return changeOfTag(h.Tag.Name, func(t Tag) (Tag, error) { return HandBack(t, h.Allocation, h.Next) }), nil
}
