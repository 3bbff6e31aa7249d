package hapax_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
)

func TestExtendWorkerSeesARollbackWithinItsLease(t *testing.T) {
	store := memstore.New()
	lease, err := store.AcquireWorker(t.Context(), hapax.AcquireRequest{
		Pool: "p", Layout: mustLayout(t, "leaf").String(), IDs: hapax.Grant{Lo: 0, Hi: 8}, Holder: "me",
		To: 100, End: 1 << 41, Poison: 1 << 40, Now: time.Now(), TTL: time.Minute, Tick: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	backup := store.Snapshot()
	lease, err = store.ExtendWorker(t.Context(), lease, hapax.ExtendRequest{To: 200, End: 1 << 41, Now: time.Now(), TTL: time.Minute})
	if err != nil || lease.Grant != (hapax.Grant{Lo: 100, Hi: 200}) {
		t.Fatal(lease, err)
	}
	store.Restore(backup)
	if l, err := store.ExtendWorker(t.Context(), lease, hapax.ExtendRequest{To: 300, End: 1 << 41, Now: time.Now(), TTL: time.Minute}); !errors.Is(err, hapax.ErrStoreRolledBack) {
		t.Errorf("granted %v, %v; want ErrStoreRolledBack", l.Grant, err)
	}
}

func TestReviveKeepsWhatIsFrozen(t *testing.T) {
	for name, tc := range map[string]struct{ was, is hapax.Tag }{
		"another kind": {hapax.Tag{Name: "a"}, hapax.Tag{Name: "a", Kind: hapax.KindSnowflake}},
		"another pool": {hapax.Tag{Name: "a", Kind: hapax.KindSnowflake}, hapax.Tag{Name: "a", Kind: hapax.KindSnowflake, Pool: "other"}},
	} {
		t.Run(name, func(t *testing.T) {
			store := memstore.New()
			was, err := tc.was.WithDefaults()
			if err != nil {
				t.Fatal(err)
			}
			is, err := tc.is.WithDefaults()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := store.CreateTag(t.Context(), was, hapax.CreateExplicit); err != nil {
				t.Fatal(err)
			}
			if _, err := store.DeleteTag(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			if _, err := store.CreateTag(t.Context(), is, hapax.CreateExplicit); !errors.Is(err, hapax.ErrKindMismatch) {
				t.Errorf("error is %v, want ErrKindMismatch", err)
			}
		})
	}
}

func TestErrorCodes(t *testing.T) {
	if code := hapax.CodeOf(errors.New("something")); code != "internal" {
		t.Errorf("an unknown error has code %q", code)
	}
	for _, err := range []*hapax.Error{hapax.ErrTagNotFound, hapax.ErrNoWorker, hapax.ErrStoreUnavailable, hapax.ErrFieldRange} {
		if got := hapax.ErrorOf(err.Code()); got != err {
			t.Errorf("code %q leads to %v", err.Code(), got)
		}
		wrapped := &hapax.WaitError{Cause: err, Context: t.Context().Err()}
		if hapax.CodeOf(wrapped) != err.Code() {
			t.Errorf("wrapped, %q became %q", err.Code(), hapax.CodeOf(wrapped))
		}
	}
}
