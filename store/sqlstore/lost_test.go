package sqlstore_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/sqlstore"
)

// A store of which a part was lost is refused when it is opened, as it is by
// those who have it open, until somebody adopts it.
func TestOpenRefusesLostParts(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		for what, lose := range map[string]string{
			"the rows":       "DROP TABLE {}rows",
			"the meta table": "DROP TABLE {}meta",
			"the ID":         "DELETE FROM {}meta WHERE name = 'id'",
		} {
			t.Run(what, func(t *testing.T) {
				url := fresh(url)
				s := open(t, url, sqlstore.Options{})
				create(t, s, "orders")
				if ok, err := s.SwapRow(t.Context(), "t", "r", nil, []byte("1")); !ok || err != nil {
					t.Fatal(ok, err)
				}
				run(t, s, strings.ReplaceAll(lose, "{}", prefixOf(url)))
				_, err := Open(t.Context(), url, sqlstore.Options{})
				wantErr(t, "open", err, hapax.ErrStoreReplaced)
				_, err = Open(t.Context(), url, sqlstore.Options{}) // the first may have left something
				wantErr(t, "open again", err, hapax.ErrStoreReplaced)
				adopted := open(t, url, sqlstore.Options{Adopt: true})
				if _, err := adopted.CreateTag(t.Context(), must(hapax.Tag{Name: "others"}.WithDefaults()), hapax.CreateFirstUse); err != nil {
					t.Error(err)
				}
				create(t, open(t, url, sqlstore.Options{}), "more")
			})
		}
	})
}

// An existing handle serves a store, and stays open when that is closed.
func TestNew(t *testing.T) {
	onServers(t, func(t *testing.T, server *testservers.Server, url string) {
		dialect := open(t, url, sqlstore.Options{}).Name()
		db := plain(t, url)
		s, err := sqlstore.New(t.Context(), db, dialect, sqlstore.Options{Prefix: prefixOf(url)})
		if err != nil {
			t.Fatal(err)
		}
		create(t, s, "orders")
		a, err := s.Allocate(t.Context(), "orders", 0, "")
		if err != nil {
			t.Fatal(err)
		}
		if a, err = s.Allocate(t.Context(), "orders", 0, a.Key); err != nil || a.From != 1 || a.Grant != (hapax.Grant{Lo: 11, Hi: 21}) {
			t.Fatalf("%+v, %v; want [11, 21) from 1", a, err)
		}
		if err := s.HandBack(t.Context(), a, 5); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "hand back again", s.HandBack(t.Context(), a, 5), hapax.ErrLeaseLost)
		if g := allocate(t, s, "orders", 0); g.Lo != 5 {
			t.Errorf("after a hand-back to 5 the grant is %v", g)
		}
		for _, u := range []driver.TagUpdate{{}, {Floor: new(int64(100))}, {Floor: new(int64(100))}, {Step: new(int64(20))}, {Step: new(int64(20))}} {
			if tag, err := s.UpdateTag(t.Context(), "orders", u); err != nil || u.Floor != nil && tag.Mark != 100 {
				t.Errorf("%+v, %v", tag, err)
			}
		}
		for _, swap := range [][2][]byte{{nil, {1}}, {{1}, {2}}, {{2}, nil}} {
			if ok, err := s.SwapRow(t.Context(), "t", "r", swap[0], swap[1]); !ok || err != nil {
				t.Error(ok, err)
			}
		}
		if dialect == sqlstore.MySQL {
			_, err := sqlstore.New(t.Context(), plainWith(t, url, true), dialect, sqlstore.Options{Prefix: prefixOf(url)})
			wantErr(t, "a handle that counts what it finds", err, hapax.ErrStoreUnsafe)
			var left int
			if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+prefixOf(url)+"rows WHERE tbl = 'probe'").Scan(&left); err != nil || left > 0 {
				t.Errorf("finding that out left %d rows, %v", left, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "ping", s.Ping(t.Context()), hapax.ErrClosed)
		wantErr(t, "allocate", second(s.Allocate(t.Context(), "orders", 0, "")), hapax.ErrClosed)
		if err := db.PingContext(t.Context()); err != nil {
			t.Errorf("the handle is closed, too: %v", err)
		}
		_, err = sqlstore.New(t.Context(), db, "oracle", sqlstore.Options{})
		wantErr(t, "another dialect", err, hapax.ErrInvalidArgument)

		other := open(t, url, sqlstore.Options{})
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "ping", other.Ping(t.Context()), hapax.ErrClosed)
		wantErr(t, "tag", second(other.Tag(t.Context(), "orders")), hapax.ErrClosed)
	})
}

// A caller may show the key of its last allocation to another handle, as when it
// asks another node: the run goes on.
func TestRunAcrossHandles(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		stores := []*sqlstore.Store{open(t, url, sqlstore.Options{}), open(t, url, sqlstore.Options{})}
		create(t, stores[0], "orders")
		var a hapax.Allocation
		for i := range int64(6) {
			var err error
			a, err = stores[i%2].Allocate(t.Context(), "orders", 0, a.Key)
			if err != nil || a.From != 1 || a.Grant != (hapax.Grant{Lo: 1 + 10*i, Hi: 11 + 10*i}) {
				t.Fatalf("%+v, %v; want 10 numbers from %d in a run from 1", a, err, 1+10*i)
			}
		}
		other, err := stores[0].Allocate(t.Context(), "orders", 0, "")
		if err != nil || other.From != 61 {
			t.Fatalf("%+v, %v; want a run of its own from 61", other, err)
		}
		if a, err = stores[1].Allocate(t.Context(), "orders", 0, a.Key); err != nil || a.From != 71 {
			t.Fatalf("%+v, %v; want a new run from 71", a, err)
		}
	})
}

// Edits of a definition while others allocate never lower the mark, so that no
// number is granted twice.
func TestEditsWhileAllocating(t *testing.T) {
	onServers(t, func(t *testing.T, _ *testservers.Server, url string) {
		stores := []*sqlstore.Store{open(t, url, sqlstore.Options{}), open(t, url, sqlstore.Options{})}
		create(t, stores[0], "orders")
		ctx, stop := context.WithCancel(t.Context())
		var mu sync.Mutex // guards granted
		var granted []hapax.Grant
		var allocating, editing sync.WaitGroup
		for i := range 8 {
			allocating.Go(func() {
				var last hapax.GrantKey
				for range 60 {
					a, err := stores[i%2].Allocate(t.Context(), "orders", 0, last)
					if err != nil {
						t.Error(err)
						return
					}
					last = a.Key
					mu.Lock()
					granted = append(granted, a.Grant)
					mu.Unlock()
				}
			})
		}
		for i := range int64(4) {
			editing.Go(func() {
				for n := int64(0); ctx.Err() == nil; n++ {
					tag, err := stores[i%2].Tag(t.Context(), "orders")
					if err != nil {
						t.Error(err)
						return
					}
					extra := string(rune('a' + n%26))
					floor := tag.Mark + 1
					if _, err := stores[i%2].UpdateTag(t.Context(), "orders", driver.TagUpdate{Step: new(10 + (n+i)%5), Floor: &floor, Extra: &extra}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		allocating.Wait()
		stop()
		editing.Wait()
		disjoint(t, granted)
	})
}
