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
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/driver"
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

// TestControls breaks a store in one way at a time and expects the suite to see
// it, in the checks that are named.
func TestControls(t *testing.T) {
	for _, c := range []struct {
		name   string
		breaks func(*twin)
		caught []string
	}{
		{"two allocations read the same mark", func(s *twin) {
			s.allocate = func(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
				before, err := s.Store.Tag(ctx, tag)
				if err != nil {
					return hapax.Allocation{}, err
				}
				a, after, err := driver.Advance(driver.Tag{Tag: before}, n, last)
				if err != nil {
					return hapax.Allocation{}, err
				}
				patience.Slow(time.Millisecond)
				_, err = s.Store.UpdateTag(ctx, tag, driver.TagUpdate{Floor: &after.Mark})
				return a, err
			}
		}, []string{"segments/concurrent", "linearizable/allocate"}},
		{"the end of the line is cut to what is left", func(s *twin) {
			s.allocate = func(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
				if t, err := s.Store.Tag(ctx, tag); err == nil && n > 0 {
					n = min(n, max(1, hapax.MaxMark-t.Mark))
				}
				return s.Store.Allocate(ctx, tag, n, last)
			}
		}, []string{"segments/line end"}},
		{"a size of zero is one number", func(s *twin) {
			s.allocate = func(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
				return s.Store.Allocate(ctx, tag, max(n, 1), last)
			}
		}, []string{"segments/consecutive", "segments/size"}},
		{"a tag is created by its first allocation", func(s *twin) {
			s.allocate = func(ctx context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
				s.Store.CreateTag(ctx, hapax.Tag{Name: tag}, hapax.CreateFirstUse)
				return s.Store.Allocate(ctx, tag, n, last)
			}
		}, []string{"segments/refused"}},
		{"an answer to a cancelled call", func(s *twin) {
			s.allocate = func(_ context.Context, tag string, n int64, last hapax.GrantKey) (hapax.Allocation, error) {
				return s.Store.Allocate(context.Background(), tag, n, last)
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
		{"a revival does not look at the token", func(s *twin) {
			s.create = func(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
				if old, err := s.Store.Tag(ctx, tag.Name); mode == hapax.CreateFromToken && err == nil {
					tag.Token = old.Token
				}
				return s.Store.CreateTag(ctx, tag, mode)
			}
		}, []string{"tags/renewed tombstone", "tags/model"}},
		{"a renewed tombstone is the old one", func(s *twin) {
			s.create = func(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
				if old, err := s.Store.Tag(ctx, tag.Name); mode == hapax.CreateTombstone && err == nil && old.Deleted {
					return old, nil
				}
				return s.Store.CreateTag(ctx, tag, mode)
			}
		}, []string{"tags/renewed tombstone", "tags/model"}},
		{"every creation in a race succeeds", func(s *twin) {
			s.create = func(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
				old, err := s.Store.Tag(ctx, tag.Name)
				if err == nil && !old.Deleted {
					return old, fmt.Errorf("%w: %q", hapax.ErrTagExists, tag.Name)
				}
				patience.Slow(time.Millisecond)
				if _, err = s.Store.CreateTag(ctx, tag, mode); hapax.CodeOf(err) == hapax.ErrTagExists.Code() {
					err = nil
				}
				return tag, err
			}
		}, []string{"tags/one creation wins"}},
		{"a floor lowers the mark", func(s *twin) {
			s.update = func(ctx context.Context, name string, u driver.TagUpdate) (hapax.Tag, error) {
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
		}, []string{"tags/names", "workers/names", "rows/names"}},
		{"names without spaces around them", func(s *twin) { s.rename = strings.TrimSpace }, []string{"tags/names", "workers/names", "rows/names"}},
		{"names as paths", func(s *twin) { s.rename = filepath.Clean }, []string{"tags/names", "workers/names", "rows/names"}},
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
	} {
		t.Run(c.name, func(t *testing.T) {
			h := Harness{Open: func(testing.TB) Handle {
				s := newTwin()
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

// TestHonestTwin shows that the checks fail for the break, not for the twin.
func TestHonestTwin(t *testing.T) {
	h := Harness{Open: func(testing.TB) Handle { return newTwin() }}
	wantHonest(t, h, "")
	h = Harness{Open: func(testing.TB) Handle { return newKeeper() }}
	wantHonest(t, h, "hand-back/")
	wantHonest(t, h, "segments/")
	wantHonest(t, h, "guard/")
	wantHonest(t, h, "heal/")
}

// TestAnother: each check has the store that Another returns, where there is one.
func TestAnother(t *testing.T) {
	stores := 0
	Run(t, Harness{
		Open: func(t testing.TB) Handle {
			t.Fatal("opened what the checks share")
			return nil
		},
		Another: func(testing.TB) Harness {
			stores++
			return Harness{Open: func(testing.TB) Handle { return newTwin() }}
		},
	})
	if want := len(checks()) / 2; stores < want {
		t.Errorf("%d stores for the checks; want at least %d", stores, want)
	}
}

// wantHonest fails if a check does whose name begins with prefix.
func wantHonest(t *testing.T, h Harness, prefix string) {
	t.Helper()
	for _, c := range checks() {
		if c.needs(h.Capabilities) && strings.HasPrefix(c.name, prefix) {
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
	s := &forgetful{newTwin(), path}
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
		"pools/next handle",
		"rows/next handle",
		"processes/segments at the same time",
		"processes/workers at the same time",
		"processes/segments and kill",
		"processes/workers and kill",
	})
}
