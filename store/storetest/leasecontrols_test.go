package storetest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/driver"
)

// TestRowControls breaks rows, and leases and pools over them, in one way at a
// time.
func TestRowControls(t *testing.T) {
	for _, c := range []struct {
		name   string
		breaks func(*twin)
		caught string // the checks that see it
	}{
		{"a swap that compares nothing", swapping(func(row, _, next []byte) ([]byte, []byte) { return row, next }), "rows/swap, rows/values"},
		{"a swap that compares without case", swapping(func(row, old, next []byte) ([]byte, []byte) {
			return pick(bytes.EqualFold(row, old) && len(row) > 0, row, old), next
		}), "rows/swap"},
		{"a swap that compares the beginning", swapping(func(row, old, next []byte) ([]byte, []byte) {
			return pick(old != nil && bytes.HasPrefix(row, old) && !bytes.Equal(row, next), row, old), next
		}), "rows/swap"},
		{"a swap that creates where a change is asked for", swapping(func(row, old, next []byte) ([]byte, []byte) {
			return pick(row == nil && next != nil, nil, old), next
		}), "rows/swap"},
		{"a swap in two steps", swapInTwoSteps, "rows/one swap wins, linearizable/swap, workers/start together, pools/one layout wins"},
		{"a removal that leaves an empty row", swapping(func(_, old, next []byte) ([]byte, []byte) {
			return old, pick(next == nil && old != nil, []byte(" "), next)
		}), "rows/swap, rows/list"},
		{"values as JSON", storing(compact), "rows/values"},
		{"values as text", storing(func(v []byte) []byte { return bytes.ToValidUTF8(v, []byte("?")) }), "rows/values"},
		{"values without spaces behind", storing(trim), "rows/values"},
		{"no limit of a value", swapping(func(_, old, next []byte) ([]byte, []byte) {
			return old, pick(len(next) > driver.MaxValueBytes, next[:min(len(next), driver.MaxValueBytes)], next)
		}), "rows/refused"},
		{"rows in the order of letters", listInOrderOfLetters, "rows/list"},
		{"a page that begins with the row before", listing(func(after string) string { return after[:max(0, len(after)-1)] }), "rows/list"},
		{"rows of tables that begin alike", func(s *twin) {
			s.rename = func(name string) string { return strings.TrimRight(name, "/ ") }
		}, "rows/names, rows/list"},

		{"a layout that is overwritten", overwriteLayout, "workers/layout is frozen, pools/create"},
		{"the first use revives a pool", beforeAcquire(func(ctx context.Context, s *twin, req *hapax.AcquireRequest) {
			s.CreatePool(ctx, req.Pool, req.Layout.String())
		}), "pools/delete used"},
		{"expiry in seconds", beforeAcquire(func(_ context.Context, _ *twin, req *hapax.AcquireRequest) {
			req.Term.TTL = req.Term.TTL.Truncate(time.Second) - time.Duration(req.Term.Now.Nanosecond())
		}), "workers/acquire"},
		{"a pool that was used goes for good", removeForGood, "pools/delete used"},
		{"a pool that was not used leaves a tombstone", listTombstones, "pools/delete unused"},
		{"a pool's deletion looks for workers first", lookBeforeRemoving, "pools/delete while acquiring"},

		{"an extension that asks for no key", beforeExtend(func(l *hapax.Lease, w *storedWorker) { w.KeyHash = driver.HashKey(l.Key) }), "leases/key"},
		{"an extension that asks for no token", beforeExtend(func(l *hapax.Lease, w *storedWorker) {
			w.Token, w.KeyHash = l.Token, driver.HashKey(l.Key)
			l.Grant.Hi = w.Mark
		}), "leases/extend under an old token, workers/retire"},
		{"an extension that lowers a mark", beforeExtend(func(l *hapax.Lease, w *storedWorker) {
			if w.Token == l.Token {
				w.Mark = min(w.Mark, l.Grant.Hi)
			}
		}), "leases/lost answer"},
		{"an extension that begins at the stored mark", extendFromMark, "leases/lost answer"},
		{"a row that is behind is a lost lease", afterExtend(func(context.Context, *twin, hapax.Lease, hapax.Layout, hapax.Term) (hapax.Lease, error) {
			return hapax.Lease{}, hapax.ErrLeaseLost
		}), "leases/rolled back"},
		{"a row that is gone is created again", afterExtend(func(ctx context.Context, s *twin, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
			return s.Leases.AcquireWorker(ctx, hapax.AcquireRequest{
				Pool: l.Pool, Layout: layout, Workers: hapax.WorkerRange{Lo: l.Worker, Hi: l.Worker + 1}, Holder: l.Holder, Term: term,
			})
		}), "leases/rolled back"},

		{"a seal that asks for no token", beforeSeal(func(l *hapax.Lease, w *storedWorker) {
			w.Token, w.KeyHash = l.Token, driver.HashKey(l.Key)
		}), "leases/late seal, leases/key"},
		{"a seal that asks for no key", beforeSeal(func(l *hapax.Lease, w *storedWorker) { w.KeyHash = driver.HashKey(l.Key) }), "leases/key"},
		{"a seal that compares no mark", beforeSeal(func(l *hapax.Lease, w *storedWorker) { l.Grant.Hi = max(w.Mark, l.Grant.Lo) }), "leases/lost answer"},
		{"a seal below where the lease began", beforeSeal(func(_ *hapax.Lease, w *storedWorker) { w.From = 0 }), "leases/seal"},
		{"a seal that keeps the token", sealKeepingToken, "leases/seal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantCaught(t, Harness{Open: func(testing.TB) Handle {
				s := newTwin()
				c.breaks(s)
				return s
			}}, strings.Split(c.caught, ", "))
		})
	}
}

func pick(so bool, then, otherwise []byte) []byte {
	if so {
		return then
	}
	return otherwise
}

// swapping breaks a swap: it compares and stores other rows than those it was asked
// to, where row is what is stored.
func swapping(replace func(row, old, next []byte) (compared, stored []byte)) func(*twin) {
	return func(s *twin) {
		s.swap = func(ctx context.Context, table, name string, old, next []byte) (bool, error) {
			row, err := s.Store.Row(ctx, table, name)
			if err != nil {
				return false, err
			}
			compared, stored := replace(row, old, next)
			if row == nil && compared == nil && stored == nil {
				return true, nil // there is nothing to remove
			}
			return s.Store.SwapRow(ctx, table, name, compared, stored)
		}
	}
}

// storing breaks the values of rows.
func storing(as func([]byte) []byte) func(*twin) {
	return swapping(func(_, old, next []byte) ([]byte, []byte) { return as(old), as(next) })
}

func compact(v []byte) []byte {
	var short bytes.Buffer
	if json.Compact(&short, v) == nil {
		return short.Bytes()
	}
	return v
}

func swapInTwoSteps(s *twin) {
	s.swap = func(ctx context.Context, table, name string, old, next []byte) (bool, error) {
		row, err := s.Store.Row(ctx, table, name)
		if err != nil || !bytes.Equal(row, old) || (row == nil) != (old == nil) {
			return false, err
		}
		patience.Slow(time.Millisecond)
		for ok := false; !ok && err == nil; {
			if row, err = s.Store.Row(ctx, table, name); bytes.Equal(row, next) {
				return true, err
			}
			ok, err = s.Store.SwapRow(ctx, table, name, row, next)
		}
		return true, err
	}
}

// listing breaks where a page of rows begins.
func listing(from func(after string) string) func(*twin) {
	return func(s *twin) {
		s.list = func(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
			return s.Store.ListRows(ctx, table, from(after), limit)
		}
	}
}

func listInOrderOfLetters(s *twin) {
	s.list = func(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
		all, err := s.Store.ListRows(ctx, table, after, 1<<20)
		slices.SortStableFunc(all, func(a, b driver.Row) int { return cmp.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name)) })
		return all[:min(limit, len(all))], err
	}
}

func listTombstones(s *twin) {
	s.list = func(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
		rows, err := s.Store.ListRows(ctx, table, after, limit)
		if len(rows) == 0 && limit == 1 {
			rows = append(rows, driver.Row{})
		}
		return rows, err
	}
}

// beforeAcquire breaks acquisitions by an event before them.
func beforeAcquire(do func(ctx context.Context, s *twin, req *hapax.AcquireRequest)) func(*twin) {
	return func(s *twin) {
		s.acquire = func(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
			do(ctx, s, &req)
			return s.Leases.AcquireWorker(ctx, req)
		}
	}
}

func overwriteLayout(s *twin) {
	beforeAcquire(func(ctx context.Context, s *twin, req *hapax.AcquireRequest) {
		p, err := s.CreatePool(ctx, req.Pool, req.Layout.String())
		if errors.Is(err, hapax.ErrLayoutMismatch) {
			raw, _ := s.Store.Row(ctx, "pools", req.Pool)
			s.Store.SwapRow(ctx, "pools", req.Pool, raw, bytes.ReplaceAll(raw, []byte(p.Layout), []byte(req.Layout.String())))
		}
	})(s)
}

func removeForGood(s *twin) {
	s.remove = func(ctx context.Context, pool string) (driver.Pool, error) {
		p, err := s.Leases.DeletePool(ctx, pool)
		if raw, _ := s.Store.Row(ctx, "pools", pool); raw != nil {
			s.Store.SwapRow(ctx, "pools", pool, raw, nil)
		}
		return p, err
	}
}

func lookBeforeRemoving(s *twin) {
	s.remove = func(ctx context.Context, pool string) (driver.Pool, error) {
		used, err := s.Store.ListRows(ctx, "workers/"+pool, "", 1)
		if err != nil || len(used) > 0 {
			return s.Leases.DeletePool(ctx, pool)
		}
		patience.Slow(2 * time.Millisecond)
		raw, err := s.Store.Row(ctx, "pools", pool)
		if raw == nil {
			return driver.Pool{}, cmp.Or(err, error(hapax.ErrPoolNotFound))
		}
		_, err = s.Store.SwapRow(ctx, "pools", pool, raw, nil)
		return driver.Pool{Name: pool, Deleted: true}, err
	}
}

// beforeExtend breaks extensions by an edit of the lease and its row before them.
func beforeExtend(edit func(l *hapax.Lease, w *storedWorker)) func(*twin) {
	return func(s *twin) {
		s.extend = func(ctx context.Context, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
			if _, err := s.edit(ctx, l, func(w *storedWorker) { edit(&l, w) }); err != nil {
				return l, err
			}
			return s.Leases.ExtendWorker(ctx, l, layout, term)
		}
	}
}

// afterExtend breaks what comes of an extension in a store that is behind.
func afterExtend(instead func(context.Context, *twin, hapax.Lease, hapax.Layout, hapax.Term) (hapax.Lease, error)) func(*twin) {
	return func(s *twin) {
		s.extend = func(ctx context.Context, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
			extended, err := s.Leases.ExtendWorker(ctx, l, layout, term)
			if errors.Is(err, hapax.ErrStoreRolledBack) {
				return instead(ctx, s, l, layout, term)
			}
			return extended, err
		}
	}
}

func extendFromMark(s *twin) {
	s.extend = func(ctx context.Context, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
		w, err := s.edit(ctx, l, func(*storedWorker) {})
		if err != nil {
			return l, err
		}
		longer, err := s.Leases.ExtendWorker(ctx, l, layout, term)
		if err == nil {
			longer.Grant.Lo = w.Mark
		}
		return longer, err
	}
}

// beforeSeal breaks seals by an edit of the lease and its row before them.
func beforeSeal(edit func(l *hapax.Lease, w *storedWorker)) func(*twin) {
	return func(s *twin) {
		s.seal = func(ctx context.Context, l hapax.Lease, last int64) error {
			if _, err := s.edit(ctx, l, func(w *storedWorker) { edit(&l, w) }); err != nil {
				return err
			}
			return s.Leases.SealWorker(ctx, l, last)
		}
	}
}

func sealKeepingToken(s *twin) {
	s.seal = func(ctx context.Context, l hapax.Lease, last int64) error {
		err := s.Leases.SealWorker(ctx, l, last)
		if err == nil {
			_, err = s.edit(ctx, l, func(w *storedWorker) { w.Token-- })
		}
		return err
	}
}

// trim cuts spaces off the end of a value.
func trim(v []byte) []byte {
	if t := bytes.TrimRight(v, " "); len(t) > 0 {
		return t
	}
	return v
}

// TestHandBackControls breaks hand-backs, and edits of tags, in one way at a
// time.
func TestHandBackControls(t *testing.T) {
	judged := func(loosen func(t *driver.Tag, a *hapax.Allocation)) func(driver.Tag, hapax.Allocation, int64) (driver.Tag, error) {
		return func(t driver.Tag, a hapax.Allocation, next int64) (driver.Tag, error) {
			loosened := t
			loosen(&loosened, &a)
			after, err := driver.HandBack(loosened, a, next)
			if err != nil {
				return t, err
			}
			return after, nil
		}
	}
	for _, c := range []struct {
		name   string
		breaks func(*keeper)
		caught []string
	}{
		{"a hand-back that asks for no key", func(k *keeper) {
			k.handBack = judged(func(t *driver.Tag, a *hapax.Allocation) { t.KeyHash = driver.HashKey(a.Key) })
		}, []string{"hand-back/wrong key"}},
		{"a key that survives the next caller's allocation", func(k *keeper) {
			k.advance = func(t driver.Tag, n int64, last hapax.GrantKey) (hapax.Allocation, driver.Tag, error) {
				a, next, err := driver.Advance(t, n, last)
				if err == nil && last == "" && t.KeyHash != "" {
					next.KeyHash = t.KeyHash
				}
				return a, next, err
			}
			k.handBack = func(t driver.Tag, a hapax.Allocation, next int64) (driver.Tag, error) {
				after, err := driver.HandBack(t, a, next)
				after.KeyHash = t.KeyHash
				return after, err
			}
		}, []string{"hand-back/same mark again"}},
		{"a hand-back that compares no mark", func(k *keeper) {
			k.handBack = judged(func(t *driver.Tag, a *hapax.Allocation) { a.Grant.Hi = t.Mark })
		}, []string{"hand-back/wrong key"}},
		{"a hand-back of anything below the mark", func(k *keeper) {
			k.handBack = judged(func(t *driver.Tag, a *hapax.Allocation) { t.Run = t.Mark })
		}, []string{"hand-back/below"}},
		{"a hand-back that trusts the caller's beginning", func(k *keeper) {
			k.handBack = judged(func(t *driver.Tag, a *hapax.Allocation) { t.Run = t.Mark - a.From })
		}, []string{"hand-back/below"}},
		{"a hand-back that keeps the key", func(k *keeper) {
			k.handBack = func(t driver.Tag, a hapax.Allocation, next int64) (driver.Tag, error) {
				after, err := driver.HandBack(t, a, next)
				after.KeyHash, after.Run = t.KeyHash, t.Run
				return after, err
			}
		}, []string{"hand-back/same mark again"}},
		{"a hand-back to a tombstone", func(k *keeper) {
			k.handBack = judged(func(t *driver.Tag, a *hapax.Allocation) { t.Deleted = false })
		}, []string{"hand-back/deleted"}},
		{"a hand-back that does nothing", func(k *keeper) {
			k.handBack = func(t driver.Tag, a hapax.Allocation, next int64) (driver.Tag, error) {
				_, err := driver.HandBack(t, a, next)
				return t, err
			}
		}, []string{"hand-back/rest", "hand-back/adjoining"}},
		{"a run that somebody's allocation does not end", func(k *keeper) {
			k.advance = func(t driver.Tag, n int64, last hapax.GrantKey) (hapax.Allocation, driver.Tag, error) {
				run := t.Run
				a, next, err := driver.Advance(t, n, last)
				if err == nil {
					next.Run = run + a.Grant.Len()
					a.From = a.Grant.Hi - next.Run
				}
				return a, next, err
			}
		}, []string{"hand-back/adjoining", "hand-back/at the same time"}},
		{"a run of one segment", func(k *keeper) {
			k.advance = func(t driver.Tag, n int64, _ hapax.GrantKey) (hapax.Allocation, driver.Tag, error) {
				return driver.Advance(t, n, "")
			}
		}, []string{"hand-back/adjoining"}},
		{"a run that a floor does not end", func(k *keeper) {
			k.redefine = func(t driver.Tag, def hapax.Tag) driver.Tag { t.Tag = def; return t }
			k.floored = func(t driver.Tag, _ int64) driver.Tag { return t }
		}, []string{"hand-back/floor in between"}},
		{"a floor that an open grant undoes", func(k *keeper) {
			k.floored = func(t driver.Tag, _ int64) driver.Tag { return t }
		}, []string{"hand-back/floor in a grant", "hand-back/floor among grants", "guard/hand-back", "tags/delete and revive with a later start"}},
		{"a floor that a run undoes whose last grant lies above it", func(k *keeper) {
			k.floored = func(t driver.Tag, floor int64) driver.Tag {
				if t.Run <= 10 {
					return t.Floored(floor)
				}
				return t
			}
		}, []string{"hand-back/floor in a grant"}},
		{"a floor that does not raise the token", func(k *keeper) {
			k.floored = func(t driver.Tag, floor int64) driver.Tag {
				next := t.Floored(floor)
				next.Token = t.Token
				return next
			}
		}, []string{"hand-back/floor in a grant"}},
		{"a floor that ends every run", func(k *keeper) {
			k.floored = func(t driver.Tag, _ int64) driver.Tag { return t.Floored(hapax.MaxMark) }
		}, []string{"hand-back/floor in a grant", "hand-back/floor in between"}},
		{"an edit that writes the mark it read", func(k *keeper) { k.slowEdit = true }, []string{"segments/edited at the same time"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantCaught(t, Harness{Open: func(testing.TB) Handle {
				k := newKeeper()
				c.breaks(k)
				return k
			}}, c.caught)
		})
	}
}
