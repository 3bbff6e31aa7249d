package boltstore

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/internal/fileid"
)

// TestMovedAndCopied works on real files.
func TestMovedAndCopied(t *testing.T) {
	s, path := newStore(t)
	first, err := s.Allocate(t.Context(), "t", 10, "")
	if err != nil {
		t.Fatal(err)
	}
	s.Close()

	moved := filepath.Join(t.TempDir(), "moved.db")
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, moved).Close()

	copied := moved + ".copy"
	copyFile(t, moved, copied)
	_, err = Open(t.Context(), copied, Options{})
	wantError(t, err, hapax.ErrStoreCopied, copied, "inode", "hapax adopt")
	skipped, err := Open(t.Context(), copied, Options{SkipIdentity: true})
	if err != nil {
		t.Fatalf("with SkipIdentity: %v", err)
	}
	skipped.Close()

	a, err := Adopt(t.Context(), copied, Margin{Numbers: 500})
	if err != nil || len(a.Differences) == 0 {
		t.Fatalf("adoption: %+v, error %v", a, err)
	}
	s = mustOpen(t, copied)
	next, err := s.Allocate(t.Context(), "t", 1, "")
	if err != nil || next.Grant.Lo != first.Grant.Hi+500 {
		t.Errorf("after the adoption: %v, error %v; want a grant from %d", next.Grant, err, first.Grant.Hi+500)
	}
}

func TestCompare(t *testing.T) {
	was := identity{Inode: 7, Born: 70, Machine: "m"}
	for _, c := range []struct {
		name     string
		was, now identity
		copied   bool
	}{
		{"the same", was, was, false},
		{"copied", was, identity{Inode: 8, Born: 80, Machine: "m"}, true},
		{"copied onto a fresh disk, to the same inode", was, identity{Inode: 7, Born: 80, Machine: "m"}, true},
		{"copied, no time of birth", identity{Inode: 7}, identity{Inode: 8}, true},
		{"another machine", was, identity{Inode: 7, Born: 70, Machine: "n"}, true},
		{"inodes change with each mount", was, identity{Inode: 8, Born: 70, Machine: "m"}, false},
		{"in a container now", was, identity{Inode: 7, Born: 70, Machine: ""}, false},
		{"was in a container", identity{Inode: 7, Born: 70, Machine: ""}, was, false},
		{"time of birth no longer told", was, identity{Inode: 7, Born: 0, Machine: "m"}, false},
		{"time of birth told for the first time", identity{Inode: 7, Born: 0, Machine: "m"}, was, false},
		{"nothing is told", identity{}, identity{}, false},
	} {
		if got := c.was.Compare(c.now); len(got) > 0 != c.copied {
			t.Errorf("%s: differences are %q", c.name, got)
		}
	}
}

// TestMachineLearned: a machine ID that becomes known is recorded, and one that
// is not told for once is not forgotten.
func TestMachineLearned(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	open := func(machine string) error {
		s, err := openStore(t.Context(), path, Options{}, func(f *os.File) (identity, error) {
			id, err := identify(f)
			id.Machine = machine
			return id, err
		})
		if err == nil {
			s.Close()
		}
		return err
	}
	for _, machine := range []string{"", "a", "", "a"} {
		if err := open(machine); err != nil {
			t.Fatalf("on machine %q: %v", machine, err)
		}
	}
	wantError(t, open("b"), hapax.ErrStoreCopied, "machine")
}

func TestAdopt(t *testing.T) {
	s, path := newStore(t)
	ctx := t.Context()
	for _, tag := range []hapax.Tag{
		{Name: "dead", Start: 50},
		{Name: "end", Start: hapax.MaxMark - 5},
		{Name: "flake", Kind: hapax.KindSnowflake},
	} {
		if _, err := s.CreateTag(ctx, tag, hapax.CreateExplicit); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.DeleteTag(ctx, "dead"); err != nil {
		t.Fatal(err)
	}
	past, err := s.AcquireWorker(ctx, acquireRequest(1000))
	if err != nil {
		t.Fatal(err)
	}
	layout, _ := hapax.ParseLayout("leaf")
	now, _ := layout.TickOf(time.Now())
	ahead := acquireRequest(now + time.Hour.Milliseconds())
	ahead.Holder = "other"
	future, err := s.AcquireWorker(ctx, ahead)
	if err != nil {
		t.Fatal(err)
	}
	id, _ := s.StoreID(ctx)
	s.Close()

	a, err := Adopt(ctx, path, Margin{Numbers: 1000, Time: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if a.StoreID != id || len(a.Differences) != 0 {
		t.Errorf("the adoption is of store %s with differences %q; want %s and none", a.StoreID, a.Differences, id)
	}
	raised := map[string]driver.Raised{}
	for _, r := range a.Raised {
		raised[r.Tag+r.Pool+string(rune('0'+r.Worker))] = r
	}
	later, _ := layout.TickOf(time.Now())
	for _, c := range []struct {
		key                   string
		from, atLeast, atMost int64
	}{
		{"t0", 1, 1001, 1001},
		{"dead0", 50, 1050, 1050},
		{"end0", hapax.MaxMark - 5, hapax.MaxMark, hapax.MaxMark},
		{"pool0", past.Grant.Hi, now + 60_000, later + 60_000},
		{"pool1", future.Grant.Hi, future.Grant.Hi + 60_000, future.Grant.Hi + 60_000},
	} {
		r, ok := raised[c.key]
		if !ok || r.From != c.from || r.To < c.atLeast || r.To > c.atMost {
			t.Errorf("%s was raised as %+v; want from %d to %d…%d", c.key, r, c.from, c.atLeast, c.atMost)
		}
	}
	if len(a.Raised) != 5 {
		t.Errorf("%d marks were raised; want 5", len(a.Raised))
	}

	s = mustOpen(t, path)
	if _, err := s.ExtendWorker(ctx, past, layout, hapax.Term{Now: time.Now(), TTL: time.Second}); hapax.CodeOf(err) != hapax.ErrLeaseLost.Code() {
		t.Errorf("extend of a lease from before the adoption: error is %v; want ErrLeaseLost", err)
	}
	if tag, err := s.Tag(ctx, "dead"); err != nil || !tag.Deleted || tag.Mark != 1050 {
		t.Errorf("the tombstone is %+v, error %v", tag, err)
	}
}

func TestAdoptRefuses(t *testing.T) {
	s, path := newStore(t)
	s.Close()
	for _, m := range []Margin{{}, {Numbers: -1}, {Numbers: math.MaxInt64}, {Numbers: 1, Time: -1}} {
		_, err := Adopt(t.Context(), path, m)
		wantError(t, err, hapax.ErrInvalidArgument, "margin")
	}
	if tag, err := mustOpen(t, path).Tag(t.Context(), "t"); err != nil || tag.Mark != 1 {
		t.Errorf("the tag is %+v, error %v", tag, err)
	}
}

// TestRestoredInPlace: earlier contents that were written into the file are told
// by the generation beside them; a crash at any moment is not taken for that.
func TestRestoredInPlace(t *testing.T) {
	s, path := newStore(t)
	if _, ok := fileid.Attribute(s.handle); !ok {
		t.Skip("the file system has no extended attributes")
	}
	s.Close()
	contents := func() []byte {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	write := func(raw []byte) {
		if err := os.WriteFile(path, raw, 0o600); err != nil { // into the same file
			t.Fatal(err)
		}
	}
	backup := contents()
	refused := func(what string) {
		t.Helper()
		_, err := Open(t.Context(), path, Options{})
		wantError(t, err, hapax.ErrStoreCopied, path, what, "hapax adopt")
	}

	s = mustOpen(t, path)
	if _, err := s.Allocate(t.Context(), "t", 10, ""); err != nil {
		t.Fatal(err)
	}
	whileOpen := contents()
	s.Close()
	current := contents()
	for name, old := range map[string][]byte{"from before": backup, "from the last run": whileOpen} {
		write(old)
		refused("not those that were here last")
		write(current)
		if s, err := Open(t.Context(), path, Options{}); err != nil {
			t.Fatalf("with its own contents after a backup %s: %v", name, err)
		} else {
			s.Close()
		}
		current = contents()
	}
	write(backup)
	if skipped, err := Open(t.Context(), path, Options{SkipIdentity: true}); err != nil {
		t.Fatalf("with SkipIdentity: %v", err)
	} else {
		skipped.Close()
	}
	write(backup)
	a, err := Adopt(t.Context(), path, Margin{Numbers: 100})
	if err != nil || len(a.Differences) != 1 {
		t.Fatalf("adoption: %+v, error %v; want the one difference", a, err)
	}
	s = mustOpen(t, path)
	if got, err := s.Allocate(t.Context(), "t", 1, ""); err != nil || got.Grant.Lo != 101 {
		t.Errorf("after the adoption: %v, error %v", got.Grant, err)
	}

	// A process that is killed: nothing is renewed.
	if err := s.db.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path)

	// Between the two steps of a renewal.
	head, err := read(t.Context(), s, readHeader)
	if err == nil {
		err = s.db.Update(func(tx *bbolt.Tx) error {
			head.Before, head.Generation = head.Generation, "new"
			return writeHeader(tx, head)
		})
	}
	if err = errors.Join(err, s.db.Close()); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path)
	if err := fileid.SetAttribute(s.handle, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Close(); err != nil {
		t.Fatal(err)
	}
	refused("is gone")
}
