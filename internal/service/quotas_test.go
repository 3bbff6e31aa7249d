package service

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/storetest"
)

// as returns a context of a caller with a token, and how many numbers of the day's
// quota are left.
func as(t *testing.T, config auth.TokenConfig) (ctx context.Context, left func() int64) {
	t.Helper()
	token := auth.NewToken()
	config.Hash = auth.HashToken(token)
	p, err := auth.NewPolicy(map[string]auth.TokenConfig{"app": config})
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.Caller(token)
	if err != nil {
		t.Fatal(err)
	}
	return auth.NewContext(t.Context(), c, "192.0.2.1:1234"), func() (n int64) {
		for step := config.NumbersPerDay; step > 0; step /= 2 {
			for c.TakeNumbers(step) == nil {
				n += step
			}
		}
		c.ReturnNumbers(n)
		return n
	}
}

// Each way to take numbers costs as many as are taken, and nothing where there are
// none: an outage of the store uses up nobody's quota.
func TestQuotaOfNumbers(t *testing.T) {
	const quota = 1000
	opts := Options{
		MaxCount: 100, NoAutoCreate: true, MaxWait: time.Second,
		Tags: map[string]TagConfig{"orders": {}, "daily": {Code: "{yyyy}{MM}{dd}-{seq:9}", Zone: "UTC"}, "short": {Code: "{id:6}"}, "cold": {}},
	}
	bubble(t, opts, func(t *testing.T, s *Service, store *storetest.Faults) {
		if _, err := s.Next(t.Context(), "orders"); err != nil { // Allocate creates no tag
			t.Fatal(err)
		}
		var lease hapax.Allocation
		ways := map[string]struct {
			takes int64
			call  func(ctx context.Context, tag string) error
		}{
			"Next":      {1, func(ctx context.Context, tag string) error { _, err := s.Next(ctx, tag); return err }},
			"NextBytes": {1, func(ctx context.Context, tag string) error { _, err := s.NextBytes(ctx, []byte(tag)); return err }},
			"NextN": {30, func(ctx context.Context, tag string) error {
				_, err := s.NextN(ctx, tag, make([]hapax.ID, 30))
				return err
			}},
			"Reserve": {500, func(ctx context.Context, tag string) error { _, err := s.Reserve(ctx, tag, 500); return err }},
			"Allocate": {700, func(ctx context.Context, tag string) (err error) {
				lease, err = s.Allocate(ctx, tag, 700, "")
				return err
			}},
		}
		for name, way := range ways {
			ctx, left := as(t, auth.TokenConfig{Scopes: []string{"issue", "lease"}, NumbersPerDay: quota})
			if err := way.call(ctx, "orders"); err != nil || left() != quota-way.takes {
				t.Errorf("%s: error %v, and %d are left", name, err, left())
			}
			for _, tag := range []string{"missing", "\n"} {
				if err := way.call(ctx, tag); err == nil || left() != quota-way.takes {
					t.Errorf("%s of %q: error %v, and %d are left", name, tag, err, left())
				}
			}
			poor, nothing := as(t, auth.TokenConfig{Scopes: []string{"issue", "lease"}, NumbersPerDay: way.takes})
			if err := way.call(poor, "orders"); err != nil {
				t.Errorf("%s with just enough: %v", name, err)
			}
			if err := way.call(poor, "orders"); !errors.Is(err, api.ErrLimitExceeded) || nothing() != 0 {
				t.Errorf("%s beyond the quota: %v", name, err)
			}
		}
		for tag, n := range map[string]int{"daily": 20, "short": 10} {
			ctx, left := as(t, auth.TokenConfig{NumbersPerDay: quota})
			if _, err := s.NextCodes(ctx, tag, n); err != nil || left() != quota-int64(n) {
				t.Errorf("codes of %s: error %v, and %d are left", tag, err, left())
			}
			if _, err := s.NextN(ctx, tag, make([]hapax.ID, 5)); err != nil || left() != quota-int64(n)-5 {
				t.Errorf("numbers of %s: error %v, and %d are left", tag, err, left())
			}
			if _, err := s.NextCodes(ctx, "orders", n); err == nil || left() != quota-int64(n)-5 {
				t.Errorf("codes of a tag without: error %v, and %d are left", err, left())
			}
		}

		ctx, left := as(t, auth.TokenConfig{Scopes: []string{"lease"}, NumbersPerDay: quota})
		if err := ways["Allocate"].call(ctx, "orders"); err != nil {
			t.Fatal(err)
		}
		if err := s.HandBack(ctx, lease, lease.Grant.Lo+200); err != nil || left() != quota-200 {
			t.Errorf("handed back: error %v, and %d are left", err, left())
		}
		if err := s.HandBack(ctx, lease, lease.Grant.Lo); err == nil || left() != quota-200 {
			t.Errorf("handed back twice: error %v, and %d are left", err, left())
		}

		if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "apart", Delta: 3, Remainder: 2}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
		for issued := range int64(10) {
			for below := range int64(3) { // a client may give its next number, or what is behind its last one
				ctx, left := as(t, auth.TokenConfig{Scopes: []string{"lease"}, NumbersPerDay: quota})
				a, err := s.Allocate(ctx, "apart", 10, "")
				if err != nil {
					t.Fatal(err)
				}
				next := max(a.Grant.Lo, a.Grant.Lo+(2-a.Grant.Lo%3+3)%3+3*issued-below)
				if err := s.HandBack(ctx, a, next); err != nil || left() != quota-issued {
					t.Errorf("handed back from %d on, %d of 10 issued: error %v, and %d are left", next, issued, err, left())
				}
			}
		}

		store.Inject(func(storetest.Op) storetest.Fault { return storetest.Fault{Fail: hapax.ErrStoreUnavailable} })
		for name, way := range ways {
			ctx, left := as(t, auth.TokenConfig{Scopes: []string{"issue", "lease"}, NumbersPerDay: quota})
			if err := way.call(ctx, "cold"); err == nil || left() != quota {
				t.Errorf("%s while the store is away: error %v, and %d are left", name, err, left())
			}
		}
		store.Inject(nil)
	})
}

// Whoever leaves while numbers in a row or a lease are on their way has them count:
// they may be burnt.
func TestQuotaOfGoneClients(t *testing.T) {
	bubble(t, Options{MaxWait: time.Minute}, func(t *testing.T, s *Service, store *storetest.Faults) {
		mustNext(t, s, "orders")
		store.Inject(func(op storetest.Op) storetest.Fault {
			if op.Method == "Allocate" {
				return storetest.Fault{After: time.Second}
			}
			return storetest.Fault{}
		})
		for name, call := range map[string]func(context.Context) error{
			"Reserve":  func(ctx context.Context) error { _, err := s.Reserve(ctx, "orders", 100_000); return err },
			"Allocate": func(ctx context.Context) error { _, err := s.Allocate(ctx, "orders", 100_000, ""); return err },
		} {
			ctx, left := as(t, auth.TokenConfig{Scopes: []string{"issue", "lease"}, NumbersPerDay: 1_000_000})
			ctx, leave := context.WithCancel(ctx)
			time.AfterFunc(100*time.Millisecond, leave)
			if err := call(ctx); err == nil || left() != 900_000 {
				t.Errorf("%s: error %v, and %d are left", name, err, left())
			}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		store.Inject(nil)
	})
}
