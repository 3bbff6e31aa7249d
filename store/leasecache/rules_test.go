package leasecache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable/losing"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

var (
	leaf, _ = hapax.ParseLayout(hapax.LayoutLeaf)
	start   = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

// request asks for a minute, some time after the start.
func request(after time.Duration) hapax.AcquireRequest {
	return hapax.AcquireRequest{
		Pool: "p", Layout: leaf, Workers: hapax.WorkerRange{Lo: 0, Hi: 4}, Holder: "me",
		Term: hapax.Term{Now: start.Add(after), Length: time.Minute, Behind: time.Hour, Ahead: 10 * time.Millisecond, TTL: time.Minute},
	}
}

func extension(after time.Duration) hapax.Term { return request(after).Term }

// acquired returns a cache with a lease, and where it is kept.
func acquired(t *testing.T, upstream Upstream) (*Cache, hapax.Lease, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lease")
	c := openCache(t, path, upstream)
	l, err := c.AcquireWorker(t.Context(), request(0))
	if err != nil {
		t.Fatal(err)
	}
	return c, l, path
}

func reopen(t *testing.T, c *Cache, path string, upstream Upstream) *Cache {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return openCache(t, path, upstream)
}

// TestForgottenBeforeSealed: when the store hears of the seal, the file does not
// tell the lease any more, and no start goes on with it.
func TestForgottenBeforeSealed(t *testing.T) {
	store := storetest.NewFaults(memstore.New())
	c, l, path := acquired(t, store)
	seals := 0
	store.Inject(func(op storetest.Op) storetest.Fault {
		if op.Method == "SealWorker" {
			seals++
			if k, err := readFile(path); err != nil || k.Lease != nil {
				t.Errorf("at the seal the file has the lease %v, error %v", k.Lease != nil, err)
			}
		}
		return storetest.Fault{}
	})
	if err := c.SealWorker(t.Context(), l, l.Grant.Lo+5); err != nil || seals != 1 {
		t.Fatalf("the seal: error %v, %d seals of the store", err, seals)
	}
	store.Down()
	c = reopen(t, c, path, store)
	if l, err := c.AcquireWorker(t.Context(), request(10*time.Second)); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("after the seal, without the store: lease %+v, error %v", l, err)
	}
}

// TestResumeAbove: the first tick after a restart is the one after the last part,
// however far the issuer would reach back.
func TestResumeAbove(t *testing.T) {
	for _, down := range []bool{true, false} {
		store := storetest.NewFaults(memstore.New())
		c, l, path := acquired(t, store)
		if down {
			store.Down()
		}
		c = reopen(t, c, path, store)
		again, err := c.AcquireWorker(t.Context(), request(DefaultPart))
		if err != nil || again.Grant.Lo != l.Grant.Hi || again.From != l.Grant.Hi || again.Token != l.Token || again.Key != l.Key {
			t.Errorf("store down %v: after %v came %v from %d, error %v", down, l.Grant, again.Grant, again.From, err)
		}
	}
}

// TestAnotherLayout: a lease is not resumed for another layout.
func TestAnotherLayout(t *testing.T) {
	store := storetest.NewFaults(memstore.New())
	c, _, path := acquired(t, store)
	store.Down()
	c = reopen(t, c, path, store)
	req := request(10 * time.Second)
	var err error
	if req.Layout, err = hapax.ParseLayout("time:41,worker:9,sequence:13,epoch=" + fmt.Sprintf("%dms", leaf.Epoch().UnixMilli())); err != nil {
		t.Fatal(err)
	}
	if l, err := c.AcquireWorker(t.Context(), req); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("for another layout: lease %+v, error %v", l, err)
	}
}

// leap is a store whose extensions leave out some ticks.
type leap struct{ Upstream }

func (s leap) ExtendWorker(ctx context.Context, l hapax.Lease, layout hapax.Layout, term hapax.Term) (hapax.Lease, error) {
	l, err := s.Upstream.ExtendWorker(ctx, l, layout, term)
	l.Grant.Lo += 100
	return l, err
}

// TestRenewalThatLeaps: an extension that does not follow on is not used.
func TestRenewalThatLeaps(t *testing.T) {
	c, l, _ := acquired(t, leap{memstore.New()})
	end := l.Grant.Lo + time.Minute.Milliseconds() + time.Hour.Milliseconds() // of the store's grant
	var err error
	for i := 0; err == nil && i < 100; i++ {
		if l.Grant.Hi > end {
			t.Fatalf("%v was handed out; the store's grant ended at %d", l.Grant, end)
		}
		l, err = c.ExtendWorker(t.Context(), l, leaf, extension(time.Duration(i)*DefaultPart))
	}
	if !errors.Is(err, hapax.ErrLeaseLost) {
		t.Errorf("at the end of the grant the error is %v; want ErrLeaseLost", err)
	}
}

// TestAnotherStore: a lease of another store is dropped, and this one is asked.
func TestAnotherStore(t *testing.T) {
	c, _, path := acquired(t, memstore.New())
	other := memstore.New()
	c = reopen(t, c, path, other)
	l, err := c.AcquireWorker(t.Context(), request(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := other.Workers(t.Context(), "p"); err != nil || len(rows) != 1 || rows[0].Token != l.Token {
		t.Errorf("the other store has the workers %+v, error %v; the lease is %+v", rows, err, l)
	}
}

// TestRolledBackStore: a store that is behind the lease is noticed although there
// is time left: at the start, and when more time is due.
func TestRolledBackStore(t *testing.T) {
	store := memstore.New()
	before := store.Snapshot()
	c, _, path := acquired(t, store)
	store.Restore(before)
	c = reopen(t, c, path, store)
	if l, err := c.AcquireWorker(t.Context(), request(10*time.Second)); !errors.Is(err, hapax.ErrStoreRolledBack) {
		t.Fatalf("at the start: lease %+v, error %v; want ErrStoreRolledBack", l, err)
	}

	store = memstore.New()
	before = store.Snapshot()
	c, l, _ := acquired(t, store)
	store.Restore(before)
	var err error
	for i := 1; err == nil && i < 100; i++ {
		l, err = c.ExtendWorker(t.Context(), l, leaf, extension(time.Duration(i)*DefaultPart))
	}
	if over := start.Add(time.Minute); !errors.Is(err, hapax.ErrStoreRolledBack) || !leaf.TimeOf(l.Grant.Hi).Before(over) {
		t.Errorf("while it runs: error %v after a part until %v; want ErrStoreRolledBack before %v", err, leaf.TimeOf(l.Grant.Hi), over)
	}
}

// TestEndedLease: a lease that the store has ended is not resumed while the store
// says so.
func TestEndedLease(t *testing.T) {
	store := memstore.New()
	c, l, path := acquired(t, store)
	if _, err := store.RetireWorker(t.Context(), "p", l.Worker); err != nil {
		t.Fatal(err)
	}
	c = reopen(t, c, path, store)
	again, err := c.AcquireWorker(t.Context(), request(10*time.Second))
	if err != nil || again.Worker == l.Worker && again.Token == l.Token {
		t.Errorf("after %+v was retired came %+v, error %v", l, again, err)
	}
}

// TestKeyIsHidden: the file is for its owner, and nothing shows the key.
func TestKeyIsHidden(t *testing.T) {
	store := memstore.New()
	c, l, path := acquired(t, store)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, error %v; want 0600", info.Mode(), err)
	}
	raw, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(raw), string(l.Key)) {
		t.Fatalf("the file does not hold the key, error %v", err)
	}
	wrong := l
	wrong.Key = "0"
	for what, call := range map[string]error{
		"extend": func() error { _, err := c.ExtendWorker(t.Context(), wrong, leaf, extension(0)); return err }(),
		"seal":   c.SealWorker(t.Context(), wrong, l.From),
	} {
		if !errors.Is(call, hapax.ErrLeaseLost) || strings.Contains(call.Error(), string(l.Key)) {
			t.Errorf("%s with another key: error is %v; want ErrLeaseLost without the key", what, call)
		}
	}
	raw[20] ^= 1
	write(t, path, raw)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), path, store, Options{Warn: func(_, message string) {
		if strings.Contains(message, string(l.Key)) {
			t.Errorf("the warning tells the key: %s", message)
		}
	}})
	if err != nil {
		t.Error(err)
	}
}

// TestPowerLoss: a part that was handed out is not handed out again after a power
// loss.
func TestPowerLoss(t *testing.T) {
	for name, lose := range map[string]func(*losing.Disk) error{"names": (*losing.Disk).LoseNames, "contents": (*losing.Disk).LoseContents} {
		path, disk, store := filepath.Join(t.TempDir(), "lease"), losing.New(), storetest.NewFaults(memstore.New())
		c, err := open(t.Context(), path, store, Options{}, disk)
		if err != nil {
			t.Fatal(err)
		}
		l, err := c.AcquireWorker(t.Context(), request(0))
		if err == nil {
			l, err = c.ExtendWorker(t.Context(), l, leaf, extension(DefaultPart))
		}
		if err = errors.Join(err, c.Close(), lose(disk)); err != nil {
			t.Fatal(err)
		}
		if k, err := readFile(path); err == nil && (k.Lease == nil || k.Lease.Mark != l.Grant.Hi) {
			t.Errorf("%s: after the power loss the file has the lease %v", name, k.Lease != nil)
		} else if err != nil && !errors.Is(err, hapax.ErrStoreCopied) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// While the store is away, parts end where its grant ends.
func TestPartsEndWithTheGrant(t *testing.T) {
	store := storetest.NewFaults(memstore.New())
	c, l, _ := acquired(t, store)
	hi := c.kept.Lease.Hi
	store.Down()
	for after := time.Duration(0); ; after += time.Second {
		longer, err := c.ExtendWorker(t.Context(), l, leaf, extension(after))
		if err != nil {
			break
		}
		if longer.Grant.Lo != l.Grant.Hi || longer.Grant.Hi > hi {
			t.Fatalf("after %v came %v; the store's grant ends at %d", l.Grant, longer.Grant, hi)
		}
		l = longer
	}
	if l.Grant.Hi != hi {
		t.Errorf("the last part ends at %d, the store's grant at %d", l.Grant.Hi, hi)
	}
}

// A lease far ahead of the clock is not resumed: one of the two is wrong. Nor is one
// that a seal outside of the handed-out range would spoil.
func TestOddClockAndSeal(t *testing.T) {
	store := storetest.NewFaults(memstore.New())
	c, l, path := acquired(t, store)
	for _, last := range []int64{l.From - 1, l.Grant.Hi + 1} {
		if err := c.SealWorker(t.Context(), l, last); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("sealed at %d of %v: error is %v, want ErrInvalidArgument", last, l.Grant, err)
		}
	}
	store.Down()
	c = reopen(t, c, path, store)
	if l, err := c.AcquireWorker(t.Context(), request(-48*time.Hour)); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("two days before: lease %+v, error %v; want that the store is needed", l, err)
	}
}

// A file that was edited is not believed, whether or not its checksum was.
func TestEditedFile(t *testing.T) {
	for name, edit := range map[string]func(*keptLease){
		"no pool":            func(l *keptLease) { l.Pool = "" },
		"no key":             func(l *keptLease) { l.Key = "" },
		"no token":           func(l *keptLease) { l.Token = 0 },
		"mark below from":    func(l *keptLease) { l.Mark = l.From - 1 },
		"mark above the end": func(l *keptLease) { l.Mark = l.Hi + 1 },
		"ends before it is":  func(l *keptLease) { l.Lo = l.Hi + 1 },
	} {
		c, _, path := acquired(t, memstore.New())
		k := c.kept
		lease := *k.Lease
		k.Lease = &lease
		edit(k.Lease)
		if err := c.write(k); err != nil {
			t.Fatal(err)
		}
		if k, err := readFile(path); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("%s: %+v, error %v; want ErrStoreCorrupt", name, k.Lease, err)
		}
	}
	c, _, path := acquired(t, memstore.New())
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mark := fmt.Sprintf(`"mark":%d`, c.kept.Lease.Mark)
	lower := strings.Replace(string(data), mark, fmt.Sprintf(`"mark":%d`, c.kept.Lease.Mark-1), 1)
	if lower == string(data) {
		t.Fatalf("the file does not tell %s: %s", mark, data)
	}
	if err := os.WriteFile(path, []byte(lower), 0o600); err != nil {
		t.Fatal(err)
	}
	if k, err := readFile(path); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("a lower mark: %+v, error %v; want ErrStoreCorrupt", k.Lease, err)
	}
}

// What is in hand beside the part that the issuer has is told, as long as it is not of the
// past.
func TestSpare(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store *storetest.Faults, opts hapax.SnowflakeOptions) {
		c := openCache(t, filepath.Join(t.TempDir(), "lease"), store)
		if got := c.Spare(); got != 0 {
			t.Errorf("before the first lease it is %v", got)
		}
		s, err := hapax.NewSnowflake(t.Context(), c, opts)
		if err != nil {
			t.Fatal(err)
		}
		issue(t, s, nil, 10*time.Second)
		if got := c.Spare(); got < 20*time.Second || got > time.Minute {
			t.Errorf("of a grant of a minute %v are left", got)
		}
		store.Down()
		issue(t, s, nil, 5*time.Second)
		left, in := c.Spare(), s.Stats().Remaining
		for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			if _, ok := s.TryNext(); !ok {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				_, err := s.Next(ctx)
				if cancel(); err != nil {
					if lasted := time.Since(began); (lasted - left - in).Abs() > 3*time.Second {
						t.Errorf("it lasted %v; told were %v and %v", lasted, left, in)
					}
					break
				}
			}
		}
		if got := c.Spare(); got != 0 {
			t.Errorf("at the end it is %v", got)
		}
		store.Up()
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := c.Spare(); got != 0 {
			t.Errorf("after the seal it is %v", got)
		}
	})
}
