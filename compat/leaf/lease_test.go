package leaf_test

import (
	"errors"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/internal/patience"
)

// testResume: a lease that was kept in a file goes on after a crash, in time that follows
// on, unless somebody else has written to the node meanwhile.
func testResume(t *testing.T, e *tree) {
	tr := e.open(t, leaf.TreeOptions{})
	now := time.Now()
	req := request(tr, now)
	req.Term.Length = 5 * time.Minute
	lease, err := tr.AcquireWorker(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	id, err := tr.StoreID(t.Context())
	if err != nil || id == "" {
		t.Fatalf("the tree is %q, %v", id, err)
	}
	if err := tr.Close(); err != nil { // and crashes
		t.Fatal(err)
	}
	term := req.Term
	term.Now = now.Add(time.Minute)
	tr = e.open(t, leaf.TreeOptions{})
	if again, err := tr.StoreID(t.Context()); again != id || err != nil {
		t.Errorf("the tree is %q, %v; want %q", again, err, id)
	}
	next, err := tr.ExtendWorker(t.Context(), lease, req.Layout, term)
	if err != nil || next.Grant.Lo != lease.Grant.Hi {
		t.Fatalf("after a crash: got %v after %v, error %v", next.Grant, lease.Grant, err)
	}
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	e.set(t, address+"-0000000000", leafData(address, now)) // a Leaf was started as the same ip:port
	tr = e.open(t, leaf.TreeOptions{})
	if got, err := tr.ExtendWorker(t.Context(), next, req.Layout, term); !errors.Is(err, hapax.ErrLeaseLost) {
		t.Errorf("after somebody else wrote: got %v, error %v; want ErrLeaseLost", got.Grant, err)
	}
}

// testDisturbed: while much is granted, somebody else who writes to the node is noticed
// with the next report, and told of until the worker ID is acquired anew.
func testDisturbed(t *testing.T, e *tree) {
	tr := e.open(t, leaf.TreeOptions{})
	now := time.Now()
	if _, err := tr.AcquireWorker(t.Context(), request(tr, now)); err != nil {
		t.Fatal(err)
	}
	if err := tr.Disturbed(); err != nil {
		t.Fatalf("disturbed by %v", err)
	}
	e.set(t, address+"-0000000000", leafData(address, now))
	patience.Until(t, "another writer noticed", func() bool { return tr.Disturbed() != nil })
	if err := tr.Disturbed(); !errors.Is(err, hapax.ErrStoreUnsafe) {
		t.Errorf("disturbed by %v; want ErrStoreUnsafe", err)
	}
	if _, err := tr.AcquireWorker(t.Context(), request(tr, now.Add(time.Minute))); err != nil || tr.Disturbed() != nil {
		t.Errorf("acquired anew: %v, disturbed by %v", err, tr.Disturbed())
	}
}
