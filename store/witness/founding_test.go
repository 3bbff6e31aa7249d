package witness

import (
	"context"
	"testing"

	"github.com/hapax-id/hapax/store/driver"
)

// A lostAnswer loses the answer to the first swap under a pulse, which was carried out.
type lostAnswer struct {
	*counted
	lost bool
}

func (s *lostAnswer) SwapRowWith(ctx context.Context, p driver.Pulse, table, name string, old, next []byte) (bool, driver.Contact, error) {
	ok, c, err := s.counted.SwapRowWith(ctx, p, table, name, old, next)
	if !s.lost {
		s.lost = true
		return false, driver.Contact{}, errInjected
	}
	return ok, c, err
}

// TestFoundingTwice: a process that has noted the founding of a fleet, and was not told so, goes
// on where it tries again.
func TestFoundingTwice(t *testing.T) {
	c := newScene(t)
	c.joins(1)
	row := c.member(1, 2)
	c.g.me.founds = true
	s := &lostAnswer{counted: c.store}
	if err := c.g.noteFounding(t.Context(), s); err == nil {
		t.Fatal("the lost answer is no error")
	}
	if got := c.row(driver.TableGuard, rowFounding); got != row {
		t.Fatalf("the founding is noted as %q; want %q", got, row)
	}
	if err := c.g.noteFounding(t.Context(), s); err != nil {
		t.Errorf("the second try: %v", err)
	}
	c.put(driver.TableGuard, rowFounding, []byte("another's")) // of a fleet whose witnesses are gone
	if err := c.g.noteFounding(t.Context(), s); err != nil {
		t.Errorf("after another founding: %v", err)
	}
	if got := c.row(driver.TableGuard, rowFounding); got != row {
		t.Errorf("the founding is noted as %q after another; want %q", got, row)
	}
}
