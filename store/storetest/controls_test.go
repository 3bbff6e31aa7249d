package storetest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

func TestMain(m *testing.M) { Main(m, openForgetful) }

// A watch is a testing.TB that notes failures instead of failing the test.
type watch struct {
	testing.TB
	mu       sync.Mutex // guards what is below
	failures []string
	cleanups []func()
}

func (w *watch) note(s string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures = append(w.failures, s)
}

func (w *watch) Cleanup(f func())          { w.cleanups = append(w.cleanups, f) }
func (w *watch) Logf(string, ...any)       {}
func (w *watch) Error(args ...any)         { w.note(fmt.Sprint(args...)) }
func (w *watch) Errorf(f string, a ...any) { w.note(fmt.Sprintf(f, a...)) }
func (w *watch) Fatal(args ...any)         { w.Error(args...); runtime.Goexit() }
func (w *watch) Fatalf(f string, a ...any) { w.Errorf(f, a...); runtime.Goexit() }

// failures runs a check and returns what it complains about.
func (c check) failures(t *testing.T, h Harness) []string {
	w := &watch{TB: t}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() {
			for _, f := range slices.Backward(w.cleanups) {
				f()
			}
		}()
		c.runOn(w, h)
	})
	wg.Wait()
	return w.failures
}

// A twin is a memstore that is broken where one of its functions is set.
type twin struct {
	*memstore.Store
	storeID  func(ctx context.Context) (string, error)
	ping     func(ctx context.Context) error
	allocate func(ctx context.Context, tag string, n int64) (hapax.Allocation, error)
	create   func(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error)
	tags     func(ctx context.Context, after string, limit int) ([]hapax.Tag, error)
	update   func(ctx context.Context, name string, u hapax.TagUpdate) (hapax.Tag, error)
	freeze   func(ctx context.Context, pool, layout string) (string, error)
	swap     func(ctx context.Context, old, next hapax.Worker) (bool, error)
	extend   func(ctx context.Context, lease hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error)
	seal     func(ctx context.Context, lease hapax.Lease, last int64) error
	rename   func(string) string // how the store understands names
}

func (t *twin) StoreID(ctx context.Context) (string, error) {
	if t.storeID != nil {
		return t.storeID(ctx)
	}
	return t.Store.StoreID(ctx)
}

func (t *twin) Ping(ctx context.Context) error {
	if t.ping != nil {
		return t.ping(ctx)
	}
	return t.Store.Ping(ctx)
}

func (t *twin) Allocate(ctx context.Context, tag string, n int64) (hapax.Allocation, error) {
	if t.allocate != nil {
		return t.allocate(ctx, tag, n)
	}
	return t.Store.Allocate(ctx, t.name(tag), n)
}

func (t *twin) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	if t.create != nil {
		return t.create(ctx, tag, mode)
	}
	tag.Name = t.name(tag.Name)
	return t.Store.CreateTag(ctx, tag, mode)
}

func (t *twin) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	if t.tags != nil {
		return t.tags(ctx, after, limit)
	}
	return t.Store.Tags(ctx, after, limit)
}

func (t *twin) UpdateTag(ctx context.Context, name string, u hapax.TagUpdate) (hapax.Tag, error) {
	if t.update != nil {
		return t.update(ctx, name, u)
	}
	return t.Store.UpdateTag(ctx, name, u)
}

func (t *twin) FreezePool(ctx context.Context, pool, layout string) (string, error) {
	if t.freeze != nil {
		return t.freeze(ctx, pool, layout)
	}
	return t.Store.FreezePool(ctx, t.name(pool), layout)
}

func (t *twin) Workers(ctx context.Context, pool string) ([]hapax.Worker, error) {
	return t.Store.Workers(ctx, t.name(pool))
}

func (t *twin) SwapWorker(ctx context.Context, old, next hapax.Worker) (bool, error) {
	if t.swap != nil {
		return t.swap(ctx, old, next)
	}
	next.Pool = t.name(next.Pool)
	return t.Store.SwapWorker(ctx, old, next)
}

func (t *twin) AcquireWorker(ctx context.Context, req hapax.AcquireRequest) (hapax.Lease, error) {
	return hapax.AcquireWorker(ctx, t, req)
}

func (t *twin) ExtendWorker(ctx context.Context, lease hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
	if t.extend != nil {
		return t.extend(ctx, lease, req)
	}
	return hapax.ExtendWorker(ctx, t, lease, req)
}

func (t *twin) SealWorker(ctx context.Context, lease hapax.Lease, last int64) error {
	if t.seal != nil {
		return t.seal(ctx, lease, last)
	}
	return hapax.SealWorker(ctx, t, lease, last)
}

func (t *twin) name(s string) string {
	if t.rename != nil {
		return t.rename(s)
	}
	return s
}

// setMark edits a tag's mark as the interface does not allow to.
func (t *twin) setMark(tag hapax.Tag, mark int64) (hapax.Tag, error) {
	ctx := context.Background()
	edited := memstore.New()
	all, err := t.Store.Tags(ctx, "", 1<<20)
	if err != nil {
		return tag, err
	}
	tag.Mark = mark
	for _, other := range all {
		if other.Name == tag.Name {
			other = tag
		}
		if _, err := edited.CreateTag(ctx, other, hapax.CreateExplicit); err != nil {
			return tag, err
		}
		if other.Deleted {
			edited.DeleteTag(ctx, other.Name)
		}
	}
	t.Restore(edited)
	return tag, nil
}

// TestControls breaks a store in one way at a time and expects the suite to see
// it, in the checks that are named.
func TestControls(t *testing.T) {
	for _, c := range []struct {
		name   string
		breaks func(*twin)
		caught []string
	}{
		{"two allocations read the same mark", func(s *twin) {
			s.allocate = func(ctx context.Context, tag string, n int64) (hapax.Allocation, error) {
				before, err := s.Store.Tag(ctx, tag)
				if err != nil {
					return hapax.Allocation{}, err
				}
				g, after, err := before.Advance(n)
				if err != nil {
					return hapax.Allocation{}, err
				}
				time.Sleep(time.Millisecond)
				_, err = s.Store.UpdateTag(ctx, tag, hapax.TagUpdate{Floor: &after.Mark})
				return hapax.Allocation{Grant: g, Tag: after}, err
			}
		}, []string{"segments/concurrent", "linearizable/allocate"}},
		{"the end of the line is cut to what is left", func(s *twin) {
			s.allocate = func(ctx context.Context, tag string, n int64) (hapax.Allocation, error) {
				if t, err := s.Store.Tag(ctx, tag); err == nil && n > 0 {
					n = min(n, max(1, hapax.MaxMark-t.Mark))
				}
				return s.Store.Allocate(ctx, tag, n)
			}
		}, []string{"segments/line end"}},
		{"a size of zero is one number", func(s *twin) {
			s.allocate = func(ctx context.Context, tag string, n int64) (hapax.Allocation, error) {
				return s.Store.Allocate(ctx, tag, max(n, 1))
			}
		}, []string{"segments/consecutive", "segments/size"}},
		{"a tag is created by its first allocation", func(s *twin) {
			s.allocate = func(ctx context.Context, tag string, n int64) (hapax.Allocation, error) {
				s.Store.CreateTag(ctx, hapax.Tag{Name: tag}, hapax.CreateFirstUse)
				return s.Store.Allocate(ctx, tag, n)
			}
		}, []string{"segments/refused"}},
		{"an answer to a cancelled call", func(s *twin) {
			s.allocate = func(_ context.Context, tag string, n int64) (hapax.Allocation, error) {
				return s.Store.Allocate(context.Background(), tag, n)
			}
		}, []string{"identity/context"}},
		{"a revival begins at the start again", func(s *twin) {
			s.create = func(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
				tag, err := s.Store.CreateTag(ctx, tag, mode)
				if err != nil || tag.Mark == tag.Start {
					return tag, err
				}
				return s.setMark(tag, tag.Start)
			}
		}, []string{"tags/delete and revive"}},
		{"the first use revives", func(s *twin) {
			s.create = func(ctx context.Context, tag hapax.Tag, _ hapax.CreateMode) (hapax.Tag, error) {
				return s.Store.CreateTag(ctx, tag, hapax.CreateExplicit)
			}
		}, []string{"tags/delete and revive", "tags/model"}},
		{"every creation in a race succeeds", func(s *twin) {
			s.create = func(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
				old, err := s.Store.Tag(ctx, tag.Name)
				if err == nil && !old.Deleted {
					return old, fmt.Errorf("%w: %q", hapax.ErrTagExists, tag.Name)
				}
				time.Sleep(time.Millisecond)
				if _, err = s.Store.CreateTag(ctx, tag, mode); hapax.CodeOf(err) == hapax.ErrTagExists.Code() {
					err = nil
				}
				return tag, err
			}
		}, []string{"tags/one creation wins"}},
		{"a floor lowers the mark", func(s *twin) {
			s.update = func(ctx context.Context, name string, u hapax.TagUpdate) (hapax.Tag, error) {
				tag, err := s.Store.UpdateTag(ctx, name, u)
				if err != nil || u.Floor == nil {
					return tag, err
				}
				return s.setMark(tag, max(*u.Floor, tag.Start))
			}
		}, []string{"tags/update"}},
		{"names without case", func(s *twin) {
			s.rename = func(name string) string {
				i := strings.IndexByte(name, '/') + 1 // keep the prefix, which is unique only with its case
				return name[:i] + strings.ToLower(name[i:])
			}
		}, []string{"tags/names", "workers/names"}},
		{"names without spaces around them", func(s *twin) { s.rename = strings.TrimSpace }, []string{"tags/names", "workers/names"}},
		{"names as paths", func(s *twin) { s.rename = filepath.Clean }, []string{"tags/names", "workers/names"}},
		{"a list in the order of letters", func(s *twin) {
			s.tags = func(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
				all, err := s.Store.Tags(ctx, after, 1<<20)
				slices.SortStableFunc(all, func(a, b hapax.Tag) int {
					return cmp.Compare(strings.ToLower(a.Name), strings.ToLower(b.Name))
				})
				return all[:min(limit, len(all))], err
			}
		}, []string{"tags/list"}},
		{"a list without tombstones", func(s *twin) {
			s.tags = func(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
				page, err := s.Store.Tags(ctx, after, limit)
				return slices.DeleteFunc(page, func(t hapax.Tag) bool { return t.Deleted }), err
			}
		}, []string{"tags/list"}},
		{"limit zero is no limit", func(s *twin) {
			s.tags = func(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
				return s.Store.Tags(ctx, after, cmp.Or(limit, 1<<20))
			}
		}, []string{"tags/list"}},
		{"a store ID that changes", func(s *twin) {
			s.storeID = func(context.Context) (string, error) { return time.Now().String(), nil }
		}, []string{"identity/store ID"}},
		{"a store without an ID", func(s *twin) {
			s.storeID = func(context.Context) (string, error) { return "", nil }
		}, []string{"identity/store ID"}},
		{"a ping that never fails", func(s *twin) {
			s.ping = func(context.Context) error { return nil }
		}, []string{"identity/context", "identity/closed"}},
		{"a layout that is overwritten", func(s *twin) {
			s.freeze = func(_ context.Context, _, layout string) (string, error) { return layout, nil }
		}, []string{"workers/layout is frozen", "table/freeze"}},
		{"a swap that compares no mark", func(s *twin) {
			s.swap = func(ctx context.Context, old, next hapax.Worker) (bool, error) {
				row, err := s.Store.Worker(ctx, next.Pool, next.ID)
				if err != nil || row.Epoch != old.Epoch {
					return false, err
				}
				return s.Store.SwapWorker(ctx, row, next)
			}
		}, []string{"table/swap", "workers/lost acknowledgement"}},
		{"a swap that compares no epoch", func(s *twin) {
			s.swap = func(ctx context.Context, old, next hapax.Worker) (bool, error) {
				row, err := s.Store.Worker(ctx, next.Pool, next.ID)
				if err != nil || row.Mark != old.Mark {
					return false, err
				}
				return s.Store.SwapWorker(ctx, row, next)
			}
		}, []string{"table/swap", "workers/extend under an old epoch", "workers/late seal"}},
		{"a swap in two steps", func(s *twin) {
			s.swap = func(ctx context.Context, old, next hapax.Worker) (bool, error) {
				row, err := s.Store.Worker(ctx, next.Pool, next.ID)
				if err != nil || row.Mark != old.Mark || row.Epoch != old.Epoch {
					return false, err
				}
				time.Sleep(time.Millisecond)
				for ok := false; !ok && err == nil; ok, err = s.Store.SwapWorker(ctx, row, next) {
					row, _ = s.Store.Worker(ctx, next.Pool, next.ID)
				}
				return true, err
			}
		}, []string{"table/one swap wins", "linearizable/swap", "workers/start together"}},
		{"a swap that counts changed rows", func(s *twin) {
			s.swap = func(ctx context.Context, old, next hapax.Worker) (bool, error) {
				row, err := s.Store.Worker(ctx, next.Pool, next.ID)
				ok, err2 := s.Store.SwapWorker(ctx, old, next)
				return ok && row != next, cmp.Or(err, err2)
			}
		}, []string{"table/swap"}},
		{"ticks as floating point", func(s *twin) {
			s.swap = func(ctx context.Context, old, next hapax.Worker) (bool, error) {
				next.Mark = int64(float64(next.Mark))
				return s.Store.SwapWorker(ctx, old, next)
			}
		}, []string{"table/values", "workers/extremes"}},
		{"expiry in seconds", func(s *twin) {
			s.swap = func(ctx context.Context, old, next hapax.Worker) (bool, error) {
				next.Expires = next.Expires.Truncate(time.Second)
				return s.Store.SwapWorker(ctx, old, next)
			}
		}, []string{"table/values", "workers/acquire"}},
		{"an extension that asks for no epoch", func(s *twin) {
			s.extend = func(ctx context.Context, l hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
				row, err := s.Store.Worker(ctx, l.Pool, l.Worker)
				if err != nil || row.Epoch == 0 {
					return l, cmp.Or(err, error(hapax.ErrLeaseLost))
				}
				l.Epoch, l.Grant.Hi = row.Epoch, row.Mark
				return hapax.ExtendWorker(ctx, s, l, req)
			}
		}, []string{"workers/extend under an old epoch"}},
		{"an extension that trusts the lease's mark", func(s *twin) {
			s.extend = func(ctx context.Context, l hapax.Lease, req hapax.ExtendRequest) (hapax.Lease, error) {
				lo := l.Grant.Hi
				l, err := hapax.ExtendWorker(ctx, s, l, req)
				l.Grant.Lo = lo
				return l, err
			}
		}, []string{"workers/lost acknowledgement"}},
		{"a seal that asks for no epoch", func(s *twin) {
			s.seal = func(ctx context.Context, l hapax.Lease, last int64) error {
				row, err := s.Store.Worker(ctx, l.Pool, l.Worker)
				if err != nil || row.Epoch == 0 {
					return cmp.Or(err, error(hapax.ErrLeaseLost))
				}
				l.Epoch, l.Grant.Hi = row.Epoch, row.Mark
				return hapax.SealWorker(ctx, s, l, last)
			}
		}, []string{"workers/late seal", "workers/lost acknowledgement"}},
		{"a seal that keeps the epoch", func(s *twin) {
			s.swap = func(ctx context.Context, old, next hapax.Worker) (bool, error) {
				if !next.Expires.After(time.UnixMilli(0)) {
					next.Epoch = old.Epoch
				}
				return s.Store.SwapWorker(ctx, old, next)
			}
		}, []string{"workers/seal", "workers/late seal"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := Harness{Open: func(testing.TB) Handle {
				s := &twin{Store: memstore.New()}
				c.breaks(s)
				return s
			}}
			wantCaught(t, h, c.caught)
		})
	}
}

// wantCaught fails unless every named check fails.
func wantCaught(t *testing.T, h Harness, names []string) {
	t.Helper()
	for _, name := range names {
		i := slices.IndexFunc(checks(), func(c check) bool { return c.name == name })
		if i < 0 || !checks()[i].needs(h.Capabilities) {
			t.Errorf("there is no check %q for these capabilities", name)
		} else if f := checks()[i].failures(t, h); f == nil {
			t.Errorf("%q does not see it", name)
		}
	}
}

// TestHonestTwin shows that the checks fail for what is broken, not for the twin.
func TestHonestTwin(t *testing.T) {
	h := Harness{Open: func(testing.TB) Handle { return &twin{Store: memstore.New()} }}
	for _, c := range checks() {
		if c.needs(h.Capabilities) {
			if f := c.failures(t, h); f != nil {
				t.Errorf("%s: %v", c.name, f)
			}
		}
	}
}

// A forgetful store writes a tag to its file when it is created, and hardly
// ever after that. It keeps workers in memory only.
type forgetful struct {
	*twin
	path string
}

func openForgetful(ctx context.Context, path string) (Handle, error) {
	s := &forgetful{&twin{Store: memstore.New()}, path}
	if name, err := os.ReadFile(path); err == nil {
		if _, err := s.Store.CreateTag(ctx, hapax.Tag{Name: string(name)}, hapax.CreateExplicit); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *forgetful) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	if err := os.WriteFile(s.path, []byte(tag.Name), 0o600); err != nil {
		return tag, err
	}
	return s.Store.CreateTag(ctx, tag, mode)
}

// TestForgetfulStore: the checks with several handles and processes see that a
// store does not keep what it acknowledged.
func TestForgetfulStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	h := Harness{
		Open: func(t testing.TB) Handle {
			s, err := openForgetful(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		URL:          path,
		Capabilities: Capabilities{Shared: true},
	}
	wantCaught(t, h, []string{
		"identity/store ID of the next handle",
		"segments/next handle",
		"workers/next handle",
		"processes/segments at the same time",
		"processes/workers at the same time",
		"processes/segments and kill",
		"processes/workers and kill",
	})
}
