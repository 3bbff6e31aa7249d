package storetest

import (
	"context"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// as returns the store behind the wrapper in a role that not every store has.
func as[T any](s any) (T, error) {
	r, ok := s.(T)
	if !ok {
		return r, fmt.Errorf("%w: %T cannot be guarded or healed", hapax.ErrNotSupported, s)
	}
	return r, nil
}

// met is what a guarded call returns besides its error.
type met[T any] struct {
	value   T
	contact driver.Contact
}

// doMet makes one guarded call. An error of the tag itself comes with its contact.
func doMet[T any](ctx context.Context, f *Faults, method, line string, call func(driver.Guarding) (T, driver.Contact, error)) (T, driver.Contact, error) {
	var own error // of the call, that the wrapper passes on
	m, err := do(ctx, f, method, line, func(s driver.Store) (met[T], error) {
		g, err := as[driver.Guarding](s)
		if err != nil {
			return met[T]{}, err
		}
		var m met[T]
		m.value, m.contact, own = call(g)
		return m, nil
	})
	if err == nil {
		err = own
	}
	return m.value, m.contact, err
}

// Beat implements driver.Guarding, where the store behind the wrapper does.
func (f *Faults) Beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	_, c, err := doMet(ctx, f, "Beat", p.Row, func(g driver.Guarding) (none struct{}, _ driver.Contact, _ error) {
		c, err := g.Beat(ctx, p)
		return none, c, err
	})
	return c, err
}

// AllocateAllWith implements driver.Guarding, where the store behind the wrapper does. It is one
// call, on the line of its tag where all are of one.
func (f *Faults) AllocateAllWith(ctx context.Context, p driver.Pulse, all []driver.AllocateOf) ([]driver.Allocated, driver.Contact, error) {
	line := lineOf(len(all), func(i int) string { return all[i].Tag })
	return doMet(ctx, f, "AllocateAllWith", line, func(g driver.Guarding) ([]driver.Allocated, driver.Contact, error) {
		return g.AllocateAllWith(ctx, p, all)
	})
}

// HandBackAllWith implements driver.Guarding, likewise.
func (f *Faults) HandBackAllWith(ctx context.Context, p driver.Pulse, all []driver.HandBackOf) ([]bool, driver.Contact, error) {
	line := lineOf(len(all), func(i int) string { return all[i].Tag.Name })
	return doMet(ctx, f, "HandBackAllWith", line, func(g driver.Guarding) ([]bool, driver.Contact, error) {
		return g.HandBackAllWith(ctx, p, all)
	})
}

// lineOf returns the tag of n calls, empty where they are of several.
func lineOf(n int, tag func(i int) string) (line string) {
	for i := range n {
		if i > 0 && tag(i) != line {
			return ""
		}
		line = tag(i)
	}
	return line
}

// SwapRowWith implements driver.Guarding, where the store behind the wrapper does.
func (f *Faults) SwapRowWith(ctx context.Context, p driver.Pulse, table, name string, old, next []byte) (bool, driver.Contact, error) {
	return doMet(ctx, f, "SwapRowWith", table, func(g driver.Guarding) (bool, driver.Contact, error) {
		return g.SwapRowWith(ctx, p, table, name, old, next)
	})
}

// RowsNamed implements driver.Guarding, where the store behind the wrapper does.
func (f *Faults) RowsNamed(ctx context.Context, keys ...driver.Key) ([][]byte, error) {
	return do(ctx, f, "RowsNamed", "", func(s driver.Store) ([][]byte, error) {
		g, err := as[driver.Guarding](s)
		if err != nil {
			return nil, err
		}
		return g.RowsNamed(ctx, keys...)
	})
}

// SwapRows implements driver.Guarding, where the store behind the wrapper does.
func (f *Faults) SwapRows(ctx context.Context, all ...driver.Swap) (bool, error) {
	return do(ctx, f, "SwapRows", "", func(s driver.Store) (bool, error) {
		g, err := as[driver.Guarding](s)
		if err != nil {
			return false, err
		}
		return g.SwapRows(ctx, all...)
	})
}

// TagsNamed implements driver.Guarding, where the store behind the wrapper does.
func (f *Faults) TagsNamed(ctx context.Context, names []string) ([]hapax.Tag, error) {
	return do(ctx, f, "TagsNamed", "", func(s driver.Store) ([]hapax.Tag, error) {
		g, err := as[driver.Guarding](s)
		if err != nil {
			return nil, err
		}
		return g.TagsNamed(ctx, names)
	})
}

// Split implements driver.Guarding. No fault applies to it.
func (f *Faults) Split() bool {
	f.mu.Lock()
	g, err := as[driver.Guarding](f.inner)
	f.mu.Unlock()
	return err == nil && g.Split()
}

// HealTag implements driver.Healing, where the store behind the wrapper does.
func (f *Faults) HealTag(ctx context.Context, def hapax.Tag) (hapax.Tag, error) {
	return do(ctx, f, "HealTag", def.Name, func(s driver.Store) (hapax.Tag, error) {
		h, err := as[driver.Healing](s)
		if err != nil {
			return hapax.Tag{}, err
		}
		return h.HealTag(ctx, def)
	})
}

// HealWorker implements driver.Healing, where the store behind the wrapper does.
func (f *Faults) HealWorker(ctx context.Context, layout string, w driver.Worker) (driver.Worker, error) {
	return do(ctx, f, "HealWorker", w.Pool, func(s driver.Store) (driver.Worker, error) {
		h, err := as[driver.Healing](s)
		if err != nil {
			return driver.Worker{}, err
		}
		return h.HealWorker(ctx, layout, w)
	})
}
