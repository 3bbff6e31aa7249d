package service

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// A tag whose row in the store cannot be read is refused alone, and an alarm tells of it until it
// is mended.
func TestUnreadableTag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		edit := func(value []byte) (before []byte) {
			t.Helper()
			key := driver.Key{Name: "orders"}
			cells, err := store.KV().Get(t.Context(), driver.Current, key)
			if err == nil {
				_, err = store.KV().Step(t.Context(), driver.Step{Each: []driver.Change{{Key: key, Old: cells[0], Next: value}}})
			}
			if err != nil {
				t.Fatal(err)
			}
			return cells[0].Value
		}
		s := open(t, store, Options{})
		mustNext(t, s, "good")
		last := mustNext(t, s, "orders")
		before := edit([]byte("no definition"))
		alarm := func() string {
			time.Sleep(2*time.Minute + 2*lookEvery)
			for _, a := range s.alarms.list() {
				if a.Name == AlarmUnreadable {
					return a.About
				}
			}
			return ""
		}
		if about := alarm(); about != "orders" {
			t.Errorf("the alarm is about %q; want the tag: %v", about, s.alarms.list())
		}
		mustNext(t, s, "good")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if id, err := s.Next(ctx, "orders"); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("a tag that cannot be read issues %v, %v", id, err)
		}
		tags, err := s.Tags(t.Context(), "", 10)
		if err != nil || len(tags) < 2 || define.Shown(tags[1]).Kind != hapax.KindUnreadable {
			t.Errorf("the tags are %+v, %v", tags, err)
		}
		edit(before)
		if about := alarm(); about != "" {
			t.Errorf("the alarm is about %q after the row was mended", about)
		}
		if next := mustNext(t, s, "orders"); next <= last {
			t.Errorf("%v comes after %v", next, last)
		}
	})
}
