package coord

import (
	"context"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// AllocateAllWith implements driver.TogetherAllocating. It is a step for each hundred tags,
// as long as nobody else has changed them since this handle last saw them.
func (r *Rows) AllocateAllWith(ctx context.Context, p driver.Pulse, all []driver.AllocateOf) ([]driver.Allocated, driver.Contact, error) {
	if err := p.Check(); err != nil {
		return nil, driver.Contact{}, err
	}
	made := make([]driver.Allocated, len(all))
	var batch []*changed
	of := map[string][]int{}
	for i, one := range all {
		if err := hapax.ValidateName("tag", one.Tag); err != nil {
			return nil, driver.Contact{}, err
		}
		if of[one.Tag] = append(of[one.Tag], i); len(of[one.Tag]) > 1 {
			continue
		}
		batch = append(batch, &changed{key: tagKey(one.Tag), change: func(raw []byte) ([]byte, error) {
			return advanceAll(one.Tag, raw, all, made, of[one.Tag])
		}})
	}
	contact, err := r.changeAll(ctx, p, batch)
	if err != nil || !contact.Met {
		return nil, contact, err
	}
	return made, contact, nil
}

// advanceAll makes those of the allocations that are of one tag, and returns its row. The
// error is one that all of them have.
func advanceAll(tag string, raw []byte, all []driver.AllocateOf, made []driver.Allocated, of []int) (next []byte, err error) {
	var t driver.Tag
	if raw != nil {
		if t, err = decodeTag(tag, raw); err != nil {
			return nil, err
		}
	}
	advanced := false
	for _, i := range of {
		var a hapax.Allocation
		if raw == nil {
			err = fmt.Errorf("%w: %q", hapax.ErrTagNotFound, tag)
		} else {
			a, t, err = driver.Advance(t, all[i].N, all[i].Last)
		}
		if err != nil && !driver.IsOfTag(err) {
			return nil, err
		}
		made[i] = driver.Allocated{Allocation: a, Err: err}
		advanced = advanced || err == nil
	}
	if !advanced {
		return nil, err
	}
	return encodeTag(t), nil
}
