package service

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/service/define"
	"github.com/hapax-id/hapax/internal/service/health"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// editTag writes the row of a tag by hand, and returns what stood there.
func editTag(t *testing.T, store *memstore.Store, tag string, value []byte) (before []byte) {
	t.Helper()
	key := driver.Key{Name: tag}
	cells, err := store.KV().Get(t.Context(), driver.Current, key)
	if err == nil {
		_, err = store.KV().Step(t.Context(), driver.Step{Each: []driver.Change{{Key: key, Old: cells[0], Next: value}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return cells[0].Value
}

// A tag whose row in the store cannot be read is refused alone, and an alarm tells of it until it
// is mended.
func TestUnreadableTag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		edit := func(value []byte) (before []byte) { return editTag(t, store, "orders", value) }
		s := open(t, store, Options{})
		mustNext(t, s, "good")
		last := mustNext(t, s, "orders")
		before := edit([]byte("no definition"))
		alarm := func() string {
			time.Sleep(2*time.Minute + 2*health.LookEvery)
			for _, a := range s.Alarms() {
				if a.Name == health.AlarmUnreadable {
					return a.About
				}
			}
			return ""
		}
		if about := alarm(); about != "orders" {
			t.Errorf("the alarm is about %q; want the tag: %v", about, s.Alarms())
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

// A node that starts while the row of a tag cannot be read issues snowflakes of all pools, since the
// fleet knows of which pool the tag is, and what columns it has. A tag that nobody knows may be of each
// pool, with columns that say from where that goes on.
func TestSnowflakesBesideAnUnreadableRow(t *testing.T) {
	for _, c := range []struct {
		name   string
		bad    string // the tag whose row cannot be read
		known  bool
		looked int // how often the columns are read by the node that starts
	}{
		{"numbers", "orders", true, 0},
		{"a pool without columns", "plain", true, 0},
		{"a pool with columns", "dated", true, 0},
		{"nobody knows the tag", "orders", false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				plain := memstore.New()
				store, looked := storetest.NewFaults(plain), 0
				dated := TagConfig{Kind: hapax.KindSnowflake, Pool: "dates", FloorFrom: []api.FloorFrom{{URL: "env:DB", Table: "t", Column: "c"}}}
				opts := Options{
					Tags:   map[string]TagConfig{"orders": {}, "plain": {Kind: hapax.KindSnowflake}, "dated": dated, "also": {Kind: hapax.KindSnowflake, Pool: "dates"}},
					Pools:  map[string]PoolConfig{"default": {}, "dates": {}},
					Floors: func(context.Context, string, string, string) (int64, error) { looked++; return 0, nil },
				}
				value := []byte("no definition")
				if c.known {
					a := open(t, joined(t, guard(t, store, openWitness(t))), opts)
					for _, tag := range []string{"orders", "plain", "dated", "also"} {
						mustNext(t, a, tag)
					}
					time.Sleep(3 * time.Minute) // a survey
					value = editTag(t, plain, c.bad, value)
				} else {
					if _, err := plain.CreateTag(t.Context(), hapax.Tag{Name: c.bad}, hapax.CreateExplicit); err != nil {
						t.Fatal(err)
					}
					value = editTag(t, plain, c.bad, value)
				}
				looked = 0
				b := open(t, joined(t, guard(t, store, openWitness(t))), opts)
				time.Sleep(3 * time.Minute)
				for _, tag := range []string{"plain", "dated", "also"} {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					_, err := b.Next(ctx, tag)
					cancel()
					switch {
					case tag == c.bad:
						if !errors.Is(err, hapax.ErrStoreCorrupt) {
							t.Errorf("%s issues: %v", tag, err)
						}
					case c.known && err != nil:
						t.Errorf("%s: %v", tag, err)
					case !c.known && (!errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), `nobody knows whether tag "orders" is of this pool`) || !strings.Contains(err.Error(), "correct its row")):
						t.Errorf("%s: %v", tag, err)
					}
				}
				if looked != c.looked {
					t.Errorf("columns were read %d times, want %d", looked, c.looked)
				}
				if c.known {
					return
				}
				if all := b.Readiness(t.Context()).Cannot; len(all) != 2 || !strings.Contains(all[0].Detail, `tag "orders"`) {
					t.Errorf("the node tells of %+v", all)
				}
				editTag(t, plain, c.bad, value)
				time.Sleep(3 * time.Minute)
				for _, tag := range []string{"plain", "dated", "also"} {
					mustNext(t, b, tag)
				}
				if looked != 1 {
					t.Errorf("columns were read %d times", looked)
				}
			})
		})
	}
}
