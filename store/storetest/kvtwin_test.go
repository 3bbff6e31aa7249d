package storetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A kvTwin is a memstore whose primitive is broken where one of its functions is set.
type kvTwin struct {
	*twin
	driver.KV
	step func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error)

	mu   sync.Mutex // guards kept
	kept map[driver.Key]driver.Cell
}

func (k *kvTwin) Step(ctx context.Context, s driver.Step) (driver.Result, error) {
	if k.step != nil {
		return k.step(ctx, k.KV, s)
	}
	return k.KV.Step(ctx, s)
}

// Get answers from what the twin has kept.
func (k *kvTwin) Get(ctx context.Context, from driver.Freshness, keys ...driver.Key) ([]driver.Cell, error) {
	cells, err := k.KV.Get(ctx, from, keys...)
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, key := range keys {
		if cell, ok := k.kept[key]; ok && err == nil {
			cells[i] = cell
		}
	}
	return cells, err
}

// A kvHandle is a handle on the twin.
type kvHandle struct {
	*twin
	kv driver.KV
}

func (h kvHandle) KV() driver.KV { return h.kv }

// kvHarness opens handles on twins with the given break.
func kvHarness(breaks func(*kvTwin)) Harness {
	return Harness{Open: func(testing.TB) Handle {
		t := newTwin()
		k := &kvTwin{twin: t, KV: t.Store.KV(), kept: map[driver.Key]driver.Cell{}}
		breaks(k)
		return kvHandle{t, k}
	}}
}

// set writes a row whatever it is.
func set(ctx context.Context, kv driver.KV, key driver.Key, value []byte) error {
	cells, err := kv.Get(ctx, driver.Current, key)
	if err == nil {
		_, err = kv.Step(ctx, driver.Step{Each: []driver.Change{{Key: key, Old: cells[0], Next: value}}})
	}
	return err
}

// TestKVTwins breaks the primitive in one way at a time, and expects its checks to see it.
func TestKVTwins(t *testing.T) {
	for _, c := range []struct {
		name   string
		breaks func(*kvTwin)
		want   []string
	}{
		{"Raise always writes", func(k *kvTwin) {
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				r, err := kv.Step(ctx, s)
				for _, p := range s.Raise {
					if err == nil && r.Met {
						err = set(ctx, kv, p.Key, p.Value)
					}
				}
				return r, err
			}
		}, []string{"kv/raise"}},
		{"Raise always writes with changes of rows", func(k *kvTwin) {
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				r, err := kv.Step(ctx, s)
				if err == nil && r.Met && len(s.If) > 0 && len(s.Raise) > 0 && len(s.Each) > 0 {
					err = set(ctx, kv, s.Raise[0].Key, s.Raise[0].Value)
				}
				return r, err
			}
		}, []string{"kv/beats with changes at random"}},
		{"a fence is not looked at", func(k *kvTwin) {
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				if len(s.Raise) > 0 {
					s.If = slices.DeleteFunc(slices.Clone(s.If), func(c driver.Cond) bool { return c.Least == nil && !c.Same.Known })
				}
				return kv.Step(ctx, s)
			}
		}, []string{"kv/beats with changes at random"}},
		{"Raise leaves a missing row", func(k *kvTwin) {
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				s.Raise = slices.DeleteFunc(slices.Clone(s.Raise), func(p driver.Put) bool {
					cells, _ := kv.Get(ctx, driver.Current, p.Key)
					return cells[0].Value == nil
				})
				return kv.Step(ctx, s)
			}
		}, []string{"kv/raise"}},
		{"Each writes though If failed", func(k *kvTwin) {
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				r, err := kv.Step(ctx, s)
				if err == nil && !r.Met && len(s.Each) > 0 {
					_, err = kv.Step(ctx, driver.Step{Each: s.Each})
				}
				return r, err
			}
		}, []string{"kv/each by itself"}},
		{"conditions are not looked at", func(k *kvTwin) {
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				s.If = nil
				return kv.Step(ctx, s)
			}
		}, []string{"kv/conditions", "kv/each by itself"}},
		{"half a step", func(k *kvTwin) {
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				if len(s.Then) < 2 {
					return kv.Step(ctx, s)
				}
				first := s
				first.Then, s.If, s.Raise, s.Each = s.Then[:1], nil, nil, nil
				one, err := kv.Step(ctx, first)
				if err != nil || !one.Met {
					one.Then = make([]driver.Outcome, len(s.Then))
					return one, err
				}
				s.Then = s.Then[1:]
				rest, err := kv.Step(ctx, s)
				one.Met, one.Then = rest.Met, append(one.Then, rest.Then...)
				return one, err
			}
		}, []string{"kv/all or none"}},
		{"one refused change takes the others with it", func(k *kvTwin) {
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				if len(s.Each) < 2 {
					return kv.Step(ctx, s)
				}
				each := s.Each
				s.Then, s.Each = each, nil
				r, err := kv.Step(ctx, s)
				r.Then, r.Each = nil, r.Then
				return r, err
			}
		}, []string{"kv/each by itself"}},
		{"a change to the same value refused", func(k *kvTwin) {
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				r, err := kv.Step(ctx, s)
				for i, c := range s.Each {
					if err == nil && c.Old.Value != nil && string(c.Old.Value) == string(c.Next) {
						r.Each[i].Done = false
					}
				}
				return r, err
			}
		}, []string{"kv/the same value"}},
		{"a stale now", func(k *kvTwin) {
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				r, err := kv.Step(ctx, s)
				for i, c := range s.Each {
					if err == nil {
						r.Each[i].Now = c.Old
					}
				}
				return r, err
			}
		}, []string{"kv/the row as it is now"}},
		{"the row as it was is told where a change is refused", func(k *kvTwin) {
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				r, err := kv.Step(ctx, s)
				for i, c := range s.Each {
					if err == nil && !r.Each[i].Done {
						r.Each[i].Now = c.Old
					}
				}
				return r, err
			}
		}, []string{"kv/the row as it is now"}},
		{"a cell kept after an error", func(k *kvTwin) {
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				if ctx.Err() == nil {
					return kv.Step(ctx, s)
				}
				k.mu.Lock()
				defer k.mu.Unlock()
				for _, c := range s.Each {
					k.kept[c.Key] = driver.Cell{Value: c.Next, Known: true}
				}
				return driver.Result{}, errors.New("the answer was lost")
			}
		}, []string{"kv/after an error"}},
		{"a beat kept after an error", func(k *kvTwin) {
			beats := map[driver.Key]bool{}
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				if ctx.Err() != nil {
					for _, p := range s.Raise {
						beats[p.Key] = true
					}
					return driver.Result{}, errors.New("the answer was lost")
				}
				s.If = slices.DeleteFunc(slices.Clone(s.If), func(c driver.Cond) bool { return c.Least != nil && beats[c.Key] })
				return kv.Step(ctx, s)
			}
		}, []string{"kv/after an error"}},
		{"a change that does not look at the row", func(k *kvTwin) {
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				for _, c := range s.Each {
					if err := set(ctx, kv, c.Key, []byte("before")); err != nil {
						return driver.Result{}, err
					}
				}
				s.Each = slices.Clone(s.Each)
				for i, c := range s.Each {
					cells, err := kv.Get(ctx, driver.Current, c.Key)
					if err != nil {
						return driver.Result{}, err
					}
					s.Each[i].Old = cells[0]
				}
				return kv.Step(ctx, s)
			}
		}, []string{"kv/each by itself", "kv/many at once"}},
		{"a list that fails for one row", func(k *kvTwin) {
			k.tags = func(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
				tags, err := k.Store.Tags(ctx, after, limit)
				if slices.ContainsFunc(tags, func(t hapax.Tag) bool { return t.Kind == hapax.KindUnreadable }) {
					return nil, hapax.ErrStoreCorrupt
				}
				return tags, err
			}
		}, []string{"kv/a row that cannot be read"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, want := range c.want {
				i := slices.IndexFunc(kvChecks, func(c check) bool { return c.name == want })
				if i < 0 || kvChecks[i].failures(t, kvHarness(c.breaks)) == nil {
					t.Errorf("%q does not see it", want)
				}
			}
		})
	}
	for _, c := range kvChecks {
		if f := c.failures(t, kvHarness(func(*kvTwin) {})); f != nil {
			t.Errorf("%s, of a twin that is whole: %s", c.name, strings.Join(f, "\n"))
		}
	}
}

// A step that is refused when it was made is seen, whatever its form.
func TestReplacedTwins(t *testing.T) {
	for name, c := range map[string]struct {
		writes func(driver.Step) bool // in the other store
		caught bool
	}{
		"whole":             {func(driver.Step) bool { return false }, false},
		"a change":          {func(s driver.Step) bool { return len(s.If) == 0 && len(s.Each) == 1 }, true},
		"a beat":            {func(s driver.Step) bool { return len(s.Raise) > 0 && len(s.Each)+len(s.Then) == 0 }, true},
		"a grant":           {func(s driver.Step) bool { return len(s.Raise) > 0 && len(s.Each) == 1 }, true},
		"a change together": {func(s driver.Step) bool { return len(s.Then) > 0 }, true},
	} {
		var replaced bool
		store := newTwin()
		open := func(context.Context) (Handle, error) {
			opened := replaced
			k := &kvTwin{twin: store, KV: store.Store.KV()}
			k.step = func(ctx context.Context, kv driver.KV, s driver.Step) (driver.Result, error) {
				if replaced == opened {
					return kv.Step(ctx, s)
				}
				if c.writes(s) {
					if _, err := kv.Step(ctx, s); err != nil {
						return driver.Result{}, err
					}
				}
				return driver.Result{}, hapax.ErrStoreReplaced
			}
			return kvHandle{store, k}, nil
		}
		replace := func(context.Context) error { replaced = true; return nil }
		h := Harness{Open: func(t testing.TB) Handle { h, _ := open(t.Context()); return h }}
		if f := (check{run: func(e *env) { e.checkReplaced(open, replace) }}).failures(t, h); (f != nil) != c.caught {
			t.Errorf("%s: failures are %q; want some: %v", name, f, c.caught)
		}
	}
}
