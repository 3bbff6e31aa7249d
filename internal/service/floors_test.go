package service

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/api"
)

// Why a tag's columns cannot be read is told once, however many calls meet it, another cause
// anew, and the end of it once.
func TestUnreadColumnIsToldOnce(t *testing.T) {
	var log bytes.Buffer
	s := &floors{layouts: newLayouts(&core{log: slog.New(slog.NewTextHandler(&log, nil))})}
	for range 3 {
		if err := s.unread("orders", errors.New("no table orders")); !errors.Is(err, api.ErrFloorUnread) || !strings.Contains(err.Error(), "hapax tags set orders --floor N --floor-stated") {
			t.Errorf("the error is %v", err)
		}
	}
	_ = s.unread("orders", errors.New("no index")) // the line is what counts
	s.readAgain("users")
	for range 3 {
		s.readAgain("orders")
	}
	for line, want := range map[string]int{
		`level=ERROR msg="` + floorUnread + `" tag=orders cause="no table orders" code=floor_unread`: 1,
		`level=ERROR msg="` + floorUnread + `" tag=orders cause="no index" code=floor_unread`:        1,
		`level=INFO msg="` + floorRead + `" tag=orders`:                                              1,
		"level=": 3,
	} {
		if got := strings.Count(log.String(), line); got != want {
			t.Errorf("%d lines %q, want %d:\n%s", got, line, want, log.String())
		}
	}
}
