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
	"github.com/hapax-id/hapax/store/driver"
)

// TestRowControls breaks rows, and leases and pools over them, in one way at a
// time.
func TestRowControls(t *testing.T) {
	for _, c := range []struct {
		name   string
		breaks func(*twin)
		caught []string
	}{
		{"a swap that compares nothing", func(s *twin) {
			s.swap = func(ctx context.Context, table, name string, _, next []byte) (bool, error) {
				row, err := s.Store.Row(ctx, table, name)
				if err != nil || bytes.Equal(row, next) {
					return err == nil, err
				}
				return s.Store.SwapRow(ctx, table, name, row, next)
			}
		}, []string{"rows/swap", "rows/values"}},
		{"a swap that compares without case", func(s *twin) {
			s.swap = func(ctx context.Context, table, name string, old, next []byte) (bool, error) {
				if row, _ := s.Store.Row(ctx, table, name); bytes.EqualFold(row, old) && len(row) > 0 {
					old = row
				}
				return s.Store.SwapRow(ctx, table, name, old, next)
			}
		}, []string{"rows/swap"}},
		{"a swap that compares the beginning", func(s *twin) {
			s.swap = func(ctx context.Context, table, name string, old, next []byte) (bool, error) {
				if row, _ := s.Store.Row(ctx, table, name); old != nil && bytes.HasPrefix(row, old) && !bytes.Equal(row, next) {
					old = row
				}
				return s.Store.SwapRow(ctx, table, name, old, next)
			}
		}, []string{"rows/swap"}},
		{"a swap that creates where a change is asked for", func(s *twin) {
			s.swap = func(ctx context.Context, table, name string, old, next []byte) (bool, error) {
				if row, _ := s.Store.Row(ctx, table, name); row == nil && next != nil {
					old = nil
				}
				return s.Store.SwapRow(ctx, table, name, old, next)
			}
		}, []string{"rows/swap"}},
		{"a swap in two steps", func(s *twin) {
			s.swap = func(ctx context.Context, table, name string, old, next []byte) (bool, error) {
				row, err := s.Store.Row(ctx, table, name)
				if err != nil || !bytes.Equal(row, old) || (row == nil) != (old == nil) {
					return false, err
				}
				time.Sleep(time.Millisecond)
				for ok := false; !ok && err == nil; {
					if row, err = s.Store.Row(ctx, table, name); bytes.Equal(row, next) {
						return true, err
					}
					ok, err = s.Store.SwapRow(ctx, table, name, row, next)
				}
				return true, err
			}
		}, []string{"rows/one swap wins", "linearizable/swap", "workers/start together", "pools/one layout wins"}},
		{"a removal that leaves an empty row", func(s *twin) {
			s.swap = func(ctx context.Context, table, name string, old, next []byte) (bool, error) {
				if next == nil && old != nil {
					next = []byte(" ")
				}
				return s.Store.SwapRow(ctx, table, name, old, next)
			}
		}, []string{"rows/swap", "rows/list"}},
		{"values as JSON", func(s *twin) {
			s.swap = func(ctx context.Context, table, name string, old, next []byte) (bool, error) {
				for _, v := range []*[]byte{&old, &next} {
					var compact bytes.Buffer
					if json.Compact(&compact, *v) == nil {
						*v = compact.Bytes()
					}
				}
				return s.Store.SwapRow(ctx, table, name, old, next)
			}
		}, []string{"rows/values"}},
		{"values as text", func(s *twin) {
			s.swap = func(ctx context.Context, table, name string, old, next []byte) (bool, error) {
				return s.Store.SwapRow(ctx, table, name, bytes.ToValidUTF8(old, []byte("?")), bytes.ToValidUTF8(next, []byte("?")))
			}
		}, []string{"rows/values"}},
		{"values without spaces behind", func(s *twin) {
			s.swap = func(ctx context.Context, table, name string, old, next []byte) (bool, error) {
				return s.Store.SwapRow(ctx, table, name, trim(old), trim(next))
			}
		}, []string{"rows/values"}},
		{"no limit of a value", func(s *twin) {
			s.swap = func(ctx context.Context, table, name string, old, next []byte) (bool, error) {
				if len(next) > driver.MaxValueBytes {
					next = next[:driver.MaxValueBytes]
				}
				return s.Store.SwapRow(ctx, table, name, old, next)
			}
		}, []string{"rows/refused"}},
		{"rows in the order of letters", func(s *twin) {
			s.list = func(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
				all, err := s.Store.ListRows(ctx, table, after, 1<<20)
				slices.SortStableFunc(all, func(a, b driver.Row) int { return cmp.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name)) })
				return all[:min(limit, len(all))], err
			}
		}, []string{"rows/list"}},
		{"a page that begins with the row before", func(s *twin) {
			s.list = func(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
				if after != "" {
					after = after[:len(after)-1]
				}
				return s.Store.ListRows(ctx, table, after, limit)
			}
		}, []string{"rows/list"}},
		{"rows of tables that begin alike", func(s *twin) {
			s.rename = func(name string) string { return strings.TrimRight(name, "/ ") }
		}, []string{"rows/names", "rows/list"}},
		{"a layout that is overwritten", func(s *twin) {
			s.acquire = func(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
				p, err := s.CreatePool(ctx, req.Pool, req.Layout.String())
				if errors.Is(err, hapax.ErrLayoutMismatch) {
					raw, _ := s.Store.Row(ctx, "pools", req.Pool)
					s.Store.SwapRow(ctx, "pools", req.Pool, raw, bytes.ReplaceAll(raw, []byte(p.Layout), []byte(req.Layout.String())))
				}
				return s.Leases.AcquireWorker(ctx, req)
			}
		}, []string{"workers/layout is frozen", "pools/create"}},
		{"the first use revives a pool", func(s *twin) {
			s.acquire = func(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
				s.CreatePool(ctx, req.Pool, req.Layout.String())
				return s.Leases.AcquireWorker(ctx, req)
			}
		}, []string{"pools/delete used"}},
		{"a pool that was used goes for good", func(s *twin) {
			s.remove = func(ctx context.Context, pool string) (hapax.Pool, error) {
				p, err := s.Leases.DeletePool(ctx, pool)
				if raw, _ := s.Store.Row(ctx, "pools", pool); raw != nil {
					s.Store.SwapRow(ctx, "pools", pool, raw, nil)
				}
				return p, err
			}
		}, []string{"pools/delete used"}},
		{"a pool that was not used leaves a tombstone", func(s *twin) {
			s.list = func(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
				rows, err := s.Store.ListRows(ctx, table, after, limit)
				if len(rows) == 0 && limit == 1 {
					rows = append(rows, driver.Row{})
				}
				return rows, err
			}
		}, []string{"pools/delete unused"}},
		{"a pool's deletion looks for workers first", func(s *twin) {
			s.remove = func(ctx context.Context, pool string) (hapax.Pool, error) {
				used, err := s.Store.ListRows(ctx, "workers/"+pool, "", 1)
				if err != nil || len(used) > 0 {
					return s.Leases.DeletePool(ctx, pool)
				}
				time.Sleep(2 * time.Millisecond)
				raw, err := s.Store.Row(ctx, "pools", pool)
				if raw == nil {
					return hapax.Pool{}, cmp.Or(err, error(hapax.ErrPoolNotFound))
				}
				_, err = s.Store.SwapRow(ctx, "pools", pool, raw, nil)
				return hapax.Pool{Name: pool, Deleted: true}, err
			}
		}, []string{"pools/delete while acquiring"}},
		{"expiry in seconds", func(s *twin) {
			s.acquire = func(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
				req.Term.TTL = req.Term.TTL.Truncate(time.Second) - time.Duration(req.Term.Now.Nanosecond())
				return s.Leases.AcquireWorker(ctx, req)
			}
		}, []string{"workers/acquire"}},
		{"an extension that asks for no key", func(s *twin) {
			s.extend = func(ctx context.Context, l hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
				if _, err := s.edit(ctx, l, func(w *storedWorker) { w.KeyHash = driver.HashKey(l.Key) }); err != nil {
					return l, err
				}
				return s.Leases.ExtendWorker(ctx, l, req)
			}
		}, []string{"leases/key"}},
		{"an extension that asks for no token", func(s *twin) {
			s.extend = func(ctx context.Context, l hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
				w, err := s.edit(ctx, l, func(w *storedWorker) { w.Token, w.KeyHash = l.Token, driver.HashKey(l.Key) })
				if err != nil {
					return l, err
				}
				l.Grant.Hi = w.Mark
				return s.Leases.ExtendWorker(ctx, l, req)
			}
		}, []string{"leases/extend under an old token", "workers/retire"}},
		{"an extension that begins at the stored mark", func(s *twin) {
			s.extend = func(ctx context.Context, l hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
				w, err := s.edit(ctx, l, func(*storedWorker) {})
				if err != nil {
					return l, err
				}
				longer, err := s.Leases.ExtendWorker(ctx, l, req)
				if err == nil {
					longer.Grant.Lo = w.Mark
				}
				return longer, err
			}
		}, []string{"leases/lost answer"}},
		{"an extension that lowers a mark", func(s *twin) {
			s.extend = func(ctx context.Context, l hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
				if _, err := s.edit(ctx, l, func(w *storedWorker) {
					if w.Token == l.Token {
						w.Mark = min(w.Mark, l.Grant.Hi)
					}
				}); err != nil {
					return l, err
				}
				return s.Leases.ExtendWorker(ctx, l, req)
			}
		}, []string{"leases/lost answer"}},
		{"a row that is behind is a lost lease", func(s *twin) {
			s.extend = func(ctx context.Context, l hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
				l, err := s.Leases.ExtendWorker(ctx, l, req)
				if errors.Is(err, hapax.ErrStoreRolledBack) {
					err = hapax.ErrLeaseLost
				}
				return l, err
			}
		}, []string{"leases/rolled back"}},
		{"a row that is gone is created again", func(s *twin) {
			s.extend = func(ctx context.Context, l hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
				extended, err := s.Leases.ExtendWorker(ctx, l, req)
				if errors.Is(err, hapax.ErrStoreRolledBack) {
					return s.Leases.AcquireWorker(ctx, hapax.AcquireRequest{
						Pool: l.Pool, Layout: req.Layout, Workers: hapax.WorkerRange{Lo: l.Worker, Hi: l.Worker + 1}, Holder: l.Holder, Term: req.Term,
					})
				}
				return extended, err
			}
		}, []string{"leases/rolled back"}},
		{"a seal that asks for no token", func(s *twin) {
			s.seal = func(ctx context.Context, l hapax.Lease, last int64) error {
				if _, err := s.edit(ctx, l, func(w *storedWorker) { w.Token, w.KeyHash = l.Token, driver.HashKey(l.Key) }); err != nil {
					return err
				}
				return s.Leases.SealWorker(ctx, l, last)
			}
		}, []string{"leases/late seal", "leases/key"}},
		{"a seal that asks for no key", func(s *twin) {
			s.seal = func(ctx context.Context, l hapax.Lease, last int64) error {
				if _, err := s.edit(ctx, l, func(w *storedWorker) { w.KeyHash = driver.HashKey(l.Key) }); err != nil {
					return err
				}
				return s.Leases.SealWorker(ctx, l, last)
			}
		}, []string{"leases/key"}},
		{"a seal that compares no mark", func(s *twin) {
			s.seal = func(ctx context.Context, l hapax.Lease, last int64) error {
				w, err := s.edit(ctx, l, func(*storedWorker) {})
				if err != nil {
					return err
				}
				l.Grant.Hi = max(w.Mark, l.Grant.Lo)
				return s.Leases.SealWorker(ctx, l, last)
			}
		}, []string{"leases/lost answer"}},
		{"a seal below where the lease began", func(s *twin) {
			s.seal = func(ctx context.Context, l hapax.Lease, last int64) error {
				if _, err := s.edit(ctx, l, func(w *storedWorker) { w.From = 0 }); err != nil {
					return err
				}
				return s.Leases.SealWorker(ctx, l, last)
			}
		}, []string{"leases/seal"}},
		{"a seal that keeps the token", func(s *twin) {
			s.seal = func(ctx context.Context, l hapax.Lease, last int64) error {
				err := s.Leases.SealWorker(ctx, l, last)
				if err == nil {
					_, err = s.edit(ctx, l, func(w *storedWorker) { w.Token-- })
				}
				return err
			}
		}, []string{"leases/seal"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantCaught(t, Harness{Open: func(testing.TB) Handle {
				s := newTwin()
				c.breaks(s)
				return s
			}}, c.caught)
		})
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
		}, []string{"hand-back/floor in between"}},
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
