package etcdstore

import (
	"crypto/rand"
	"errors"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/internal/coord"
)

// TestReadsOfThePast: a read that is answered from before what the handle has seen
// tells that, and ends the handle.
func TestReadsOfThePast(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), testservers.SharedEtcd(t).URL+"/"+rand.Text(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.space.revision.Add(1 << 40)
	if _, err := s.space.Read(t.Context(), coord.Key{Name: "t"}); !errors.Is(err, hapax.ErrStoreRolledBack) {
		t.Errorf("the read: error is %v; want ErrStoreRolledBack", err)
	}
	if _, err := s.Tag(t.Context(), "t"); !errors.Is(err, hapax.ErrStoreRolledBack) {
		t.Errorf("the next call: error is %v; want ErrStoreRolledBack", err)
	}
}
