package durable_test

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/durable"
)

// One holds the lock at a time; who waits gets it from the one before, or gives up
// with the context.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := durable.TryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := durable.TryLock(path); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("a second lock: %v, want ErrLocked", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := durable.Lock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a lock that never comes: %v", err)
	}
	got := make(chan io.Closer)
	go func() {
		second, err := durable.Lock(t.Context(), path)
		if err != nil {
			t.Error(err)
		}
		got <- second
	}()
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	second := <-got
	if _, err := durable.TryLock(path); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("the lock of the one who waited: %v, want ErrLocked", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if _, err := durable.TryLock(filepath.Join(path, "below a file")); err == nil || errors.Is(err, durable.ErrLocked) {
		t.Errorf("a path that cannot be: %v", err)
	}
}
