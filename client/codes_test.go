package client_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/client"
	"github.com/hapax-id/hapax/internal/api/rpcapi"
	"github.com/hapax-id/hapax/store/memstore"
)

func TestCodes(t *testing.T) {
	n := serve(t, memstore.New(), rpcapi.Options{})
	c, err := client.Dial(t.Context(), client.Options{}, n.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	if _, err := c.SetCode(t.Context(), "coupons", "C{id:4}{check}", ""); err != nil {
		t.Fatal(err)
	}
	codes, err := c.NextCodes(t.Context(), "coupons", 2)
	if err != nil || !slices.Equal(codes.IDs, []hapax.ID{1, 2}) || !slices.Equal(codes.Texts, []string{"C00013", "C00021"}) {
		t.Errorf("NextCodes returned %+v, %v", codes, err)
	}
	if _, err := c.SetCode(t.Context(), "coupons", "D{id:6}{check}", ""); err != nil {
		t.Fatal(err)
	}
	if p, err := c.ParseCode(t.Context(), "coupons", "C00021"); err != nil || p.ID != 2 || p.Spec != "C{id:4}{check}" {
		t.Errorf("ParseCode returned %+v, %v", p, err)
	}
	_, err = c.ParseCode(t.Context(), "coupons", "D0000022")
	if e, ok := errors.AsType[*hapax.ValueError](err); !ok || !errors.Is(err, hapax.ErrInvalidID) || !strings.Contains(e.Allowed, "position 8") {
		t.Errorf("a typo: got %v", err)
	}

	if _, err := c.SetCode(t.Context(), "invoices", "{yyyy}-{seq:6}", "UTC"); err != nil {
		t.Fatal(err)
	}
	codes, err = c.NextCodes(t.Context(), "invoices", 1)
	if err != nil || len(codes.Period) != 4 || codes.Texts[0] != codes.Period+"-000001" {
		t.Errorf("NextCodes returned %+v, %v", codes, err)
	}
	if _, err := c.Segment(t.Context(), "invoices", hapax.SegmentOptions{}); err == nil || !strings.Contains(err.Error(), "invoices@@") {
		t.Errorf("a lease of all periods: got %v, want the name of a line", err)
	}
	seg, err := c.Segment(t.Context(), "invoices@@"+codes.Period, hapax.SegmentOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if id, err := seg.Next(t.Context()); err != nil || id <= 1 {
		t.Errorf("the lease issued %d, %v", id, err)
	}
	if _, err := c.NextCodes(t.Context(), "plain", 1); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("without a code: got %v", err)
	}
}
