package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/storetest"
)

func TestMain(m *testing.M) {
	storetest.Main(m, func(ctx context.Context, path string) (storetest.Handle, error) {
		return Open(ctx, path, Options{})
	})
}

func TestConformance(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	h := storetest.Harness{
		Open:         func(t testing.TB) storetest.Handle { return mustOpen(t, path) },
		URL:          path,
		Capabilities: storetest.Capabilities{Durable: true},
		Estrange:     estrange,
	}
	storetest.Run(t, h)
	storetest.RunKV(t, h)
}

// A store that is restored takes the identity of the one that it was.
func TestRestoredIdentity(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	storetest.RunRestored(t, func(ctx context.Context) (storetest.Handle, error) { return Open(ctx, path, Options{}) })
}

// estrange is the harness's way to a store that was copied.
func estrange(t testing.TB) storetest.Estranged {
	path := filepath.Join(t.TempDir(), "original.db")
	return storetest.Estranged{
		Open: func(ctx context.Context) (storetest.Handle, error) {
			s, err := Open(ctx, path, Options{})
			if err != nil {
				return nil, err
			}
			return s, nil
		},
		Estrange: func() {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			path += ".copy"
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		Adopt: func(ctx context.Context) error {
			_, err := Adopt(ctx, path, Margin{Numbers: 1000})
			return err
		},
	}
}

func mustOpen(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// newStore returns an open store with the tag "t".
func newStore(t testing.TB) (s *Store, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "store.db")
	s = mustOpen(t, path)
	if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
		t.Fatal(err)
	}
	return s, path
}

// wantError checks sentinel and text of an error.
func wantError(t *testing.T, err error, sentinel *hapax.Error, parts ...string) {
	t.Helper()
	if !errors.Is(err, sentinel) || hapax.CodeOf(err) != sentinel.Code() {
		t.Fatalf("error is %v; want %v", err, sentinel)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error is %q; want it to say %q", err, part)
		}
	}
}

// TestSynced: every transaction is synced, also after the file has grown.
func TestSynced(t *testing.T) {
	s, _ := newStore(t)
	if s.db.NoSync || s.db.NoGrowSync {
		t.Error("bbolt does not sync what it writes")
	}
}

func TestLocked(t *testing.T) {
	_, path := newStore(t)
	_, err := Open(t.Context(), path, Options{LockWait: time.Millisecond})
	wantError(t, err, hapax.ErrStoreLocked, path, "stop it")
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err = Open(ctx, path, Options{LockWait: time.Hour}); err == nil {
		t.Fatal("opened a locked store")
	}
	_, err = Adopt(t.Context(), path, Margin{Numbers: 1})
	wantError(t, err, hapax.ErrStoreLocked)
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, bytes.Repeat([]byte("not a store\n"), 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(dir, "short")
	if err := os.WriteFile(short, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "foreign")
	db, err := bbolt.Open(foreign, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("mine")); return err }); err != nil {
		t.Fatal(err)
	}
	db.Close()
	for _, c := range []struct {
		name, path string
		sentinel   *hapax.Error
	}{
		{"a directory", dir, hapax.ErrInvalidArgument},
		{"a device", os.DevNull, hapax.ErrInvalidArgument},
		{"no name", "", hapax.ErrStoreUnavailable},
		{"a missing directory", filepath.Join(dir, "missing", "store.db"), hapax.ErrStoreUnavailable},
		{"below a file", filepath.Join(text, "store.db"), hapax.ErrStoreUnavailable},
		{"where nobody may write", "/proc/self/store.db", hapax.ErrStoreUnavailable},
		{"a text", text, hapax.ErrStoreCorrupt},
		{"a short file", short, hapax.ErrStoreCorrupt},
		{"another program's file", foreign, hapax.ErrStoreCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Open(t.Context(), c.path, Options{})
			wantError(t, err, c.sentinel, c.path)
		})
	}
	if _, err := Adopt(t.Context(), filepath.Join(dir, "none"), Margin{Numbers: 1}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Adopt of a missing file: error is %v", err)
	}
}

func TestFileMode(t *testing.T) {
	_, path := newStore(t)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, error %v; want 0600", info.Mode(), err)
	}
}

// TestDecay flips bits all over a closed store. Open must either refuse the
// file or find every mark as it was.
func TestDecay(t *testing.T) {
	s, path := newStore(t)
	a, err := s.Allocate(t.Context(), "t", 123456, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.AcquireWorker(t.Context(), acquireRequest(1000)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	used, err := offsetsInUse(path)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for range 150 {
		bad := bytes.Clone(good)
		bad[used[rnd.IntN(len(used))]] ^= 1 << rnd.IntN(8)
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), path, Options{})
		if err != nil {
			refused++
			wantError(t, err, hapax.ErrStoreCorrupt, path)
			continue
		}
		tag, err := s.Tag(t.Context(), "t")
		rows, err2 := s.Workers(t.Context(), "pool")
		if err != nil || err2 != nil || tag.Mark != a.Grant.Hi || len(rows) != 1 || rows[0].Mark != 2000 {
			t.Errorf("a decayed store was opened and has %+v, %+v, errors %v and %v", tag, rows, err, err2)
		}
		s.Close()
	}
	if refused == 0 {
		t.Error("no decayed store was refused")
	}

	for _, size := range []int{1, 5000, 4096 * 3} {
		if err := os.WriteFile(path, good[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = Open(t.Context(), path, Options{})
		wantError(t, err, hapax.ErrStoreCorrupt, path)
	}
}

// offsetsInUse returns the offsets of the two meta pages' contents and of
// every byte of the pages in use that is not zero.
func offsetsInUse(path string) ([]int, error) {
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	var offsets []int
	size := db.Info().PageSize
	err = db.View(func(tx *bbolt.Tx) error {
		for id := 0; ; id++ {
			p, err := tx.Page(id)
			if err != nil || p == nil {
				return err
			}
			if p.Type == "free" || p.Type == "freelist" {
				continue
			}
			page := make([]byte, size)
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			_, err = f.ReadAt(page, int64(id*size))
			f.Close()
			if err != nil {
				return err
			}
			for i, b := range page {
				if b != 0 {
					offsets = append(offsets, id*size+i)
				}
			}
		}
	})
	return offsets, err
}

// TestVanishedRecord: a record that is missing is noticed, so that its line does
// not begin anew.
func TestVanishedRecord(t *testing.T) {
	s, path := newStore(t)
	s.Close()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketTags).Delete([]byte("t")) })
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), path, Options{})
	wantError(t, err, hapax.ErrStoreCorrupt, path, "0 records")
}

// TestDamagedMeta: the state before the last transaction is not taken for the
// present one, and an adoption repairs the file.
func TestDamagedMeta(t *testing.T) {
	for _, page := range []int64{0, 1} {
		s, path := newStore(t)
		if _, err := s.Allocate(t.Context(), "t", 10, ""); err != nil {
			t.Fatal(err)
		}
		s.Close()
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{0xff}, page*int64(os.Getpagesize())+70); err != nil {
			t.Fatal(err)
		}
		f.Close()
		_, err = Open(t.Context(), path, Options{})
		wantError(t, err, hapax.ErrStoreCorrupt, "hapax adopt")
		if _, err := Adopt(t.Context(), path, Margin{Numbers: 1000}); err != nil {
			t.Fatal(err)
		}
		if a, err := mustOpen(t, path).Allocate(t.Context(), "t", 1, ""); err != nil || a.Grant.Lo < 1001 {
			t.Errorf("after the adoption: %v, error %v; want a grant above 1000", a.Grant, err)
		}
	}
}

// TestFailedWrite: after a failed write nothing is granted, even if the next
// one would succeed.
func TestFailedWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	var file *os.File
	s, err := openStore(t.Context(), path, Options{}, func(f *os.File) (identity, error) {
		file = f
		return identify(f)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: "t"}, hapax.CreateExplicit); err != nil {
		t.Fatal(err)
	}
	file.Close()
	for range 2 {
		_, err = s.Allocate(t.Context(), "t", 1, "")
		wantError(t, err, hapax.ErrStoreUnavailable, path, "until a restart")
	}
	wantError(t, s.Ping(t.Context()), hapax.ErrStoreUnavailable, path)
}

// TestReplacedFile: a store whose file was taken away grants nothing, since the
// next start will not find it.
func TestReplacedFile(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"removed":  os.Remove,
		"moved":    func(path string) error { return os.Rename(path, path+".old") },
		"replaced": func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			s, path := newStore(t)
			if err := s.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := replace(path); err != nil {
				t.Fatal(err)
			}
			_, err := s.Allocate(t.Context(), "t", 1, "")
			wantError(t, err, hapax.ErrStoreReplaced, path)
			wantError(t, s.Ping(t.Context()), hapax.ErrStoreReplaced, path)
		})
	}
}

// TestSharedTransaction: grants of many tags that wait together are written together, and
// one that fails does not take the others with it. Those of one tag take turns; whoever has
// many asks for them together (driver.Guarding).
func TestSharedTransaction(t *testing.T) {
	s, _ := newStore(t)
	name := func(i int) string { return fmt.Sprint("shared ", i) }
	for i := range 50 {
		if _, err := s.CreateTag(t.Context(), hapax.Tag{Name: name(i)}, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
	}
	hold := make(chan struct{})
	held := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		write(t.Context(), s, func(*transaction) (struct{}, error) { close(held); <-hold; return struct{}{}, nil })
	})
	<-held
	before := s.db.Stats()
	for i := range 50 {
		wg.Go(func() {
			if _, err := s.Allocate(t.Context(), name(i), 1, ""); err != nil {
				t.Error(err)
			}
			if _, err := s.Allocate(t.Context(), "unknown", 1, ""); i == 0 && !errors.Is(err, hapax.ErrTagNotFound) {
				t.Errorf("error is %v; want ErrTagNotFound", err)
			}
		})
	}
	patience.Until(t, "50 waiting requests", func() bool { return s.writes.Waiting() == 50 })
	close(hold)
	wg.Wait()
	after := s.db.Stats()
	if n := after.TxStats.GetWrite() - before.TxStats.GetWrite(); n > 20 {
		t.Errorf("50 grants at once took %d page writes; want those of one transaction", n)
	}
	for i := range 50 {
		if tag, err := s.Tag(t.Context(), name(i)); err != nil || tag.Mark != 2 {
			t.Errorf("the mark of tag %d is %d, error %v; want 2", i, tag.Mark, err)
		}
	}
}

// TestContextWhileWriting: a call returns when its context ends, though its
// transaction cannot.
func TestContextWhileWriting(t *testing.T) {
	s, _ := newStore(t)
	hold := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	running := make(chan struct{})
	go func() { <-running; cancel() }()
	_, err := write(ctx, s, func(*transaction) (int, error) { close(running); <-hold; return 1, nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v; want context.Canceled", err)
	}
	close(hold)
	if _, err := s.Allocate(t.Context(), "t", 1, ""); err != nil {
		t.Error(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

func acquireRequest(now int64) hapax.AcquireRequest {
	layout, err := hapax.ParseLayout("leaf")
	if err != nil {
		panic(err)
	}
	return hapax.AcquireRequest{
		Pool: "pool", Layout: layout, Workers: hapax.WorkerRange{Lo: 0, Hi: 4}, Holder: "h",
		Term: hapax.Term{Now: layout.TimeOf(now), Length: time.Second, TTL: time.Second},
	}
}

func BenchmarkAllocate(b *testing.B) {
	b.Run("alone", func(b *testing.B) {
		s, _ := newStore(b)
		for b.Loop() {
			if _, err := s.Allocate(b.Context(), "t", 1, ""); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("together", func(b *testing.B) {
		s, _ := newStore(b)
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := s.Allocate(b.Context(), "t", 1, ""); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("bbolt alone", func(b *testing.B) {
		s, _ := newStore(b)
		for b.Loop() {
			if err := s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketTags).Put([]byte("x"), make([]byte, 100)) }); err != nil {
				b.Fatal(err)
			}
		}
	})
}
