package service

import (
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/journal"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/store/memstore"
)

// A gated file holds up what is written to it, or synced, until its gate is opened.
type gated struct {
	*os.File

	write, sync *atomic.Pointer[chan struct{}] // nil: open
}

func pass(gate *atomic.Pointer[chan struct{}]) {
	if g := gate.Load(); g != nil {
		<-*g
	}
}

func (g gated) Write(p []byte) (int, error) {
	pass(g.write)
	return g.File.Write(p)
}

func (g gated) Sync() error {
	pass(g.sync)
	return g.File.Sync()
}

// No grant is used before its record is written, or with a required ledger before it
// is on the disk. So a process that is killed has issued nothing that its ledger does
// not know.
func TestRecordedBeforeUse(t *testing.T) {
	term := hapax.Term{Now: time.UnixMilli(1.8e12), Length: time.Second, TTL: time.Minute}
	acquire := hapax.AcquireRequest{Pool: "own", Holder: "h", Term: term}
	next := func(tag string) func(*testing.T, *Service) (func() error, error) {
		return func(t *testing.T, s *Service) (func() error, error) {
			return func() error { _, err := s.Next(t.Context(), tag); return err }, nil
		}
	}
	for name, prepare := range map[string]func(*testing.T, *Service) (func() error, error){
		"segment":   next("orders"),
		"snowflake": next(SnowflakeTag),
		"lease of numbers": func(t *testing.T, s *Service) (func() error, error) {
			mustCreate(t, s, hapax.Tag{Name: "leased"})
			return func() error { _, err := s.Allocate(t.Context(), "leased", 10, ""); return err }, nil
		},
		"lease of a worker": func(t *testing.T, s *Service) (func() error, error) {
			return func() error { _, err := s.AcquireWorker(t.Context(), acquire); return err }, nil
		},
		"extension": func(t *testing.T, s *Service) (func() error, error) {
			lease, err := s.AcquireWorker(t.Context(), acquire)
			return func() error {
				_, err := s.ExtendWorker(t.Context(), lease, hapax.Layout{}, term)
				return err
			}, err
		},
		"foreign table": func(t *testing.T, s *Service) (func() error, error) {
			store := ledger.Store{Store: memstore.New(), Ledger: s.opts.Ledger.In("foreign")}
			if _, err := store.CreateTag(t.Context(), hapax.Tag{Name: "orders"}, hapax.CreateExplicit); err != nil {
				return nil, err
			}
			return func() error { _, err := store.Allocate(t.Context(), "orders", 10, ""); return err }, nil
		},
	} {
		for _, required := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var write, sync atomic.Pointer[chan struct{}]
					l, err := ledger.Open(t.TempDir(), ledger.Options{
						Node: "a", Required: required,
						Open: func(path string) (journal.File, error) {
							f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
							return gated{f, &write, &sync}, err
						},
					})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = l.Close() })
					s := open(t, memstore.New(), Options{Ledger: l, Pools: map[string]PoolConfig{"own": {}}})
					call, err := prepare(t, s)
					if err != nil {
						t.Fatal(err)
					}
					synctest.Wait()
					gate, shut := &write, make(chan struct{})
					if required {
						gate = &sync
					}
					gate.Store(&shut)
					done := make(chan error, 1)
					go func() { done <- call() }()
					synctest.Wait()
					select {
					case err := <-done:
						t.Errorf("required is %v: the grant is used before it is recorded (%v)", required, err)
						done <- err
					default:
					}
					gate.Store(nil)
					close(shut)
					if err := <-done; err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// A node whose ledger is required and cannot be written says so.
func TestReadinessOfTheLedger(t *testing.T) {
	var full atomic.Bool
	l, err := ledger.Open(t.TempDir(), ledger.Options{Node: "a", Required: true, Open: func(path string) (journal.File, error) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		return fullDisk{f, &full}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := open(t, memstore.New(), Options{Ledger: l, Tags: map[string]TagConfig{"orders": {}}})
	for _, on := range []bool{false, true, false} {
		if full.Store(on); on {
			_ = l.Allocated(hapax.Allocation{Tag: hapax.Tag{Name: "orders"}, Grant: hapax.Grant{Lo: 1, Hi: 2}}, ledger.By{}, "")
		}
		if r := s.Readiness(t.Context()); r.Ready == on || (r.Store == "ok") == on {
			t.Errorf("full is %v: %+v", on, r)
		}
	}
}

// fullDisk is a file that cannot be written while full is set.
type fullDisk struct {
	*os.File

	full *atomic.Bool
}

func (f fullDisk) Write(p []byte) (int, error) {
	if f.full.Load() {
		return 0, syscall.ENOSPC
	}
	return f.File.Write(p)
}
