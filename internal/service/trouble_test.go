package service

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
	"github.com/hapax-id/hapax/store/witness"
)

func TestStoreDownAtStart(t *testing.T) {
	for _, tag := range []string{"orders", SnowflakeTag} {
		t.Run(tag, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := storetest.NewFaults(memstore.New())
				store.Down()
				s := open(t, store, Options{})
				if err := s.Ready(t.Context()); !errors.Is(err, hapax.ErrStoreUnavailable) {
					t.Errorf("Ready: %v", err)
				}
				began := time.Now()
				_, err := s.Next(t.Context(), tag)
				if !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Next: %v", err)
				}
				if !strings.Contains(err.Error(), "waits no longer than 2s") {
					t.Errorf("the error does not tell whose limit it was: %v", err)
				}
				if waited := time.Since(began); waited != DefaultMaxWait {
					t.Errorf("the call waited %v, want %v", waited, DefaultMaxWait)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				if _, err := s.Next(ctx, tag); !errors.Is(err, hapax.ErrStoreUnavailable) || time.Since(began) != DefaultMaxWait+100*time.Millisecond {
					t.Errorf("with a deadline of its own, Next: %v after %v", err, time.Since(began)-DefaultMaxWait)
				}
				store.Up()
				began = time.Now()
				mustNext(t, s, tag)
				if waited := time.Since(began); waited > time.Second {
					t.Errorf("the store came back %v ago", waited)
				}
				if err := s.Ready(t.Context()); err != nil {
					t.Errorf("Ready: %v", err)
				}
			})
		})
	}
}

// TestTheCauseOfAWaitIsTold lets one method of the store fail at a time.
func TestTheCauseOfAWaitIsTold(t *testing.T) {
	for tag, methods := range map[string][]string{
		"orders":     {"Tag", "CreateTag", "AllocateAllWith"},
		SnowflakeTag: {"Tag", "Pools", "SwapRowWith"},
	} {
		for _, method := range methods {
			t.Run(tag+"/"+method, func(t *testing.T) {
				guardedBubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults, _ *witness.Witness) {
					synctest.Wait()
					store.Down()
					_ = s.store.Ping(t.Context()) // so that the store's identity is in question
					store.Up()
					store.Inject(func(op storetest.Op) storetest.Fault {
						if op.Method == method {
							return storetest.Fault{Fail: hapax.ErrStoreUnavailable}
						}
						return storetest.Fault{}
					})
					if _, err := s.Next(t.Context(), tag); !errors.Is(err, hapax.ErrStoreUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("got %v", err)
					}
				})
			})
		}
	}
}

// TestChangedUnderAnAttempt deletes a tag, or raises its floor, while its line
// is being opened.
func TestChangedUnderAnAttempt(t *testing.T) {
	for name, c := range map[string]struct {
		change func(context.Context, *Service) error
		want   hapax.ID
		err    error
	}{
		"deleted": {func(ctx context.Context, s *Service) error {
			_, err := s.DeleteTag(ctx, "orders")
			return err
		}, 0, hapax.ErrTagDeleted},
		"raised": {func(ctx context.Context, s *Service) error {
			_, err := s.UpdateTag(ctx, "orders", driver.TagUpdate{Floor: new(int64(5000))})
			return err
		}, 5000, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
				if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "orders"}, hapax.CreateExplicit); err != nil {
					t.Fatal(err)
				}
				store.Inject(func(op storetest.Op) storetest.Fault {
					if op.Method == "Allocate" {
						return storetest.Fault{After: 100 * time.Millisecond} // granted, and the answer is on its way
					}
					return storetest.Fault{}
				})
				time.AfterFunc(50*time.Millisecond, func() {
					if err := c.change(context.Background(), s); err != nil {
						t.Error(err)
					}
				})
				if id, err := s.Next(t.Context(), "orders"); id != c.want || !errors.Is(err, c.err) {
					t.Errorf("got %d, %v; want %d, %v", id, err, c.want, c.err)
				}
			})
		})
	}
}

// TestClosedUnderAWait raises the floor of a tag while a caller waits for its
// next grant: the caller is served from the new line.
func TestClosedUnderAWait(t *testing.T) {
	opts := Options{Tags: map[string]TagConfig{"orders": {Step: 10, MaxStep: 10}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		mustNext(t, s, "orders")
		store.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "Allocate" {
				return storetest.Fault{Before: 300 * time.Millisecond}
			}
			return storetest.Fault{}
		})
		time.AfterFunc(100*time.Millisecond, func() {
			if _, err := s.UpdateTag(context.Background(), "orders", driver.TagUpdate{Floor: new(int64(5000))}); err != nil {
				t.Error(err)
			}
		})
		last := hapax.ID(0)
		for range 30 {
			last = mustNext(t, s, "orders")
		}
		if last < 5000 {
			t.Errorf("the last number is %d", last)
		}
	})
}

func TestACallThatWaitsIsServedWhenTheStoreReturns(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		store.Down()
		time.AfterFunc(500*time.Millisecond, store.Up)
		mustNext(t, s, "orders")
	})
}

// An attempt to open a tag outlasts its callers by the store's time-out, and no longer.
func TestOpeningEndsAfterItsCallers(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		var asked atomic.Int64
		store.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "Tag" && op.Line == "orders" {
				asked.Add(1)
			}
			return storetest.Fault{Fail: hapax.ErrStoreUnavailable}
		})
		if _, err := s.Next(t.Context(), "orders"); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("got %v", err)
		}
		time.Sleep(s.opts.StoreTimeout + time.Second)
		before := asked.Load()
		if time.Sleep(time.Minute); before == 0 || asked.Load() > before {
			t.Errorf("the store was asked %d times, and %d times for nobody", before, asked.Load()-before)
		}
	})
}

func TestReadyWhileGrantsLast(t *testing.T) {
	opts := Options{Tags: map[string]TagConfig{"orders": {Step: 100, MaxStep: 100}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		mustNext(t, s, "orders")
		store.Down()
		if err := s.Ready(t.Context()); err != nil {
			t.Errorf("with numbers left, Ready: %v", err)
		}
		for range 99 {
			mustNext(t, s, "orders")
		}
		if err := s.Ready(t.Context()); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("with none left, Ready: %v", err)
		}
	})
}

func TestSlowStoreDoesNotFailColdCalls(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		store.Inject(func(storetest.Op) storetest.Fault {
			return storetest.Fault{Before: 100 * time.Millisecond, After: 100 * time.Millisecond}
		})
		mustNext(t, s, "orders")
		mustNext(t, s, SnowflakeTag)
	})
}

func TestAllWorkersInUse(t *testing.T) {
	opts := Options{Pools: map[string]PoolConfig{"default": {Workers: "5"}}}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		other, err := hapax.NewSnowflake(t.Context(), store, hapax.SnowflakeOptions{Workers: hapax.WorkerRange{Lo: 5, Hi: 6}, KeepWarm: true, Clock: newTestClock()})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Next(t.Context(), SnowflakeTag)
		e, ok := errors.AsType[*hapax.NoWorkerError](err)
		if !ok || !errors.Is(err, context.DeadlineExceeded) || e.Size != 1 {
			t.Errorf("got %v", err)
		}
		if err := other.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustNext(t, s, SnowflakeTag)
	})
}

// TestAnAnswerThatNeverComes has the look at what other nodes have deleted go on after it: nobody
// waits for that look, so no caller's end ends it.
func TestAnAnswerThatNeverComes(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *Service, store *storetest.Faults) {
		mustNext(t, s, "orders")
		lost := false
		store.Inject(func(op storetest.Op) (f storetest.Fault) {
			if op.Method == "Tags" && !lost {
				lost, f.After = true, 24*time.Hour
			}
			return f
		})
		time.Sleep(DefaultRefresh)
		if _, err := store.DeleteTag(t.Context(), "orders"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(DefaultRefresh)
		synctest.Wait()
		if _, err := s.Next(t.Context(), "orders"); !lost || !errors.Is(err, hapax.ErrTagDeleted) {
			t.Errorf("an answer was lost: %v; after the refresh: %v", lost, err)
		}
	})
}

// TestACachedPoolIsServedWhileTheStoreHangs has a call that the lease in a file can serve answered
// before it ends: the store is asked what the tag is for less than a call waits.
func TestACachedPoolIsServedWhileTheStoreHangs(t *testing.T) {
	opts := Options{
		Pools: map[string]PoolConfig{"default": {Layout: "js-safe-53", Cache: true}},
		Cache: func(context.Context, string, driver.Store) (hapax.WorkerStore, error) { return memstore.New(), nil },
	}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		synctest.Wait()
		store.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Before: time.Hour} })
		mustNext(t, s, SnowflakeTag)
		if err := s.Ready(t.Context()); err != nil {
			t.Errorf("Ready: %v", err)
		}
	})
}
