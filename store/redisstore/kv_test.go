package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/redisstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// dump returns all that a server holds.
func dump(t testing.TB, c *redis.Client) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, key := range must[[]string](t)(c.Keys(t.Context(), "*").Result()) {
		all[key] = must[string](t)(c.Dump(t.Context(), key).Result())
	}
	return all
}

// A store of another format is refused by its number, with advice, and left as it is.
func TestOtherFormat(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	c, ctx := raw(t, srv), t.Context()
	for format, want := range map[string]string{
		"1": "says format 1,", "1, to 3": `"1, to 3" is no number`, "2": "says format 2,", "3": "says format 3,", "5": "says format 5,", "04": `"04" is no number`, "": `"" is no number`,
	} {
		if err := c.FlushAll(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		c.HSet(ctx, "hapax:{hapax}:store", "id", "I", "format", format, "rows", "1")
		c.HSet(ctx, "hapax:{hapax}:rows", "pools\x00p", `{"layout":"x"}`)
		c.ZAdd(ctx, "hapax:{hapax}:names", redis.Z{Member: "pools\x00p"})
		c.ZAdd(ctx, "hapax:{hapax}:tags", redis.Z{Member: "t"})
		c.HSet(ctx, "hapax:tag:t", "store", "I", "rev", "1", "kind", "segment", "mark", "7001")
		before := dump(t, c)
		for _, look := range []bool{false, true} {
			_, err := redisstore.Open(ctx, srv.URL, redisstore.Options{Look: look})
			wantErr(t, "format "+format, err, hapax.ErrStoreCorrupt)
			if !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("format %q: %v; want %s", format, err, want)
			}
			if strings.HasPrefix(want, "says") && !strings.Contains(fmt.Sprint(err), "use the version that has made the store, or a new place for a new one (another database, or another prefix in the URL)") {
				t.Errorf("format %q: %v does not say what to do", format, err)
			}
		}
		if after := dump(t, c); len(before) != 5 || !maps.Equal(before, after) {
			t.Errorf("format %q: %v became %v", format, before, after)
		}
	}
}

// A handle stops where the format changes under it, as a later version may do that closes the
// store to this one.
func TestFormatChanges(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s, c := open(t, srv.URL, redisstore.Options{}), raw(t, srv)
	create(t, s, hapax.Tag{Name: "t"})
	c.HSet(t.Context(), "hapax:{hapax}:store", "format", "5")
	before := dump(t, c)
	_, err := s.Allocate(t.Context(), "t", 1, "")
	wantErr(t, "Allocate", err, hapax.ErrStoreCorrupt)
	wantErr(t, "Ping", s.Ping(t.Context()), hapax.ErrStoreCorrupt)
	_, err = s.Tags(t.Context(), "", 1)
	wantErr(t, "Tags", err, hapax.ErrStoreCorrupt)
	if after := dump(t, c); !maps.Equal(before, after) {
		t.Errorf("%v became %v", before, after)
	}
}

// Whatever single key a server loses, by eviction or by hand, nothing that it held begins anew.
func TestLostKeys(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	c, ctx := raw(t, srv), t.Context()
	const prefix = "hapax:{hapax}:"
	for key, want := range map[string]*hapax.Error{
		"store": hapax.ErrStoreReplaced, "rows": hapax.ErrStoreRolledBack, "names": hapax.ErrStoreRolledBack, "tags": hapax.ErrStoreRolledBack, "tag:t": hapax.ErrStoreRolledBack,
	} {
		t.Run(key, func(t *testing.T) {
			if err := c.FlushAll(ctx).Err(); err != nil {
				t.Fatal(err)
			}
			s := open(t, srv.URL, redisstore.Options{})
			create(t, s, hapax.Tag{Name: "t"})
			acquire(t, s)
			allocate(t, s, "t", 10)
			if n := c.Del(ctx, prefix+key).Val(); n != 1 {
				t.Fatalf("%d keys were deleted", n)
			}
			before := dump(t, c)
			for _, handle := range []string{"that was open", "that is opened now"} {
				if handle == "that is opened now" {
					again, err := redisstore.Open(ctx, srv.URL, redisstore.Options{})
					if key == "store" {
						wantErr(t, "Open", err, hapax.ErrStoreCorrupt)
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
					defer again.Close()
					s = again
				}
				_, err := s.Allocate(ctx, "t", 10, "")
				wantErr(t, "Allocate on a handle "+handle, err, want)
				_, err = s.CreateTag(ctx, must[hapax.Tag](t)(hapax.Tag{Name: "t"}.WithDefaults()), hapax.CreateFirstUse)
				wantErr(t, "CreateTag on a handle "+handle, err, want)
			}
			if after := dump(t, c); !maps.Equal(before, after) {
				t.Errorf("%v became %v", before, after)
			}
		})
	}
}

// What somebody else wrote into the store's keys is an error, and neither taken nor sent as a whole.
func TestHostileRows(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s, c, ctx := open(t, srv.URL, redisstore.Options{}), raw(t, srv), t.Context()
	create(t, s, hapax.Tag{Name: "good"})
	good := must[hapax.Allocation](t)(s.Allocate(ctx, "good", 10, ""))
	pulse := driver.Pulse{Row: "n", Was: driver.Beat{Count: 1}, Now: driver.Beat{Count: 2}}
	if ok, err := s.SwapRow(ctx, driver.TableBeats, "n", nil, pulse.Was.Encode()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	long := strings.Repeat("x", driver.MaxValueBytes+1)
	for name, spoil := range map[string]func(key string){
		"too long": func(key string) { // and sound but for that
			c.Set(ctx, key, c.Get(ctx, key).Val()+strings.Repeat(" ", driver.MaxValueBytes), 0)
		},
		"empty":          func(key string) { c.Set(ctx, key, "", 0) },
		"another type":   func(key string) { c.Del(ctx, key); c.LPush(ctx, key, "x") },
		"a hash":         func(key string) { c.Del(ctx, key); c.HSet(ctx, key, "mark", 1) },
		"a number":       func(key string) { c.Set(ctx, key, 5, 0) },
		"no JSON":        func(key string) { c.Set(ctx, key, "\xff\x00", 0) },
		"another object": func(key string) { c.Set(ctx, key, `{"kind":"segment","mark":1,"step":1,"more":1}`, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			create(t, s, hapax.Tag{Name: name})
			bad := must[hapax.Allocation](t)(s.Allocate(ctx, name, 10, ""))
			spoil(tagKey(name))
			before := dump(t, c)
			back := []driver.HandBackOf{{Allocation: good, Next: 5}, {Allocation: bad, Next: 5}}
			for what, call := range map[string]func() error{
				"Allocate":     func() error { _, err := s.Allocate(ctx, name, 1, ""); return err },
				"AllocateWith": func() error { _, _, err := storetest.AllocateWith(ctx, s, pulse, name, 1, ""); return err },
				"HandBack":     func() error { return s.HandBack(ctx, bad, 5) },
				"CreateTag":    func() error { _, err := s.CreateTag(ctx, hapax.Tag{Name: name}, hapax.CreateFirstUse); return err },
				"HealTag":      func() error { _, err := s.HealTag(ctx, hapax.Tag{Name: name}); return err },
				"Tag":          func() error { _, err := s.Tag(ctx, name); return err },
			} {
				wantErr(t, what, call(), hapax.ErrStoreCorrupt)
			}
			if tags, err := s.Tags(ctx, "", 10); err != nil || len(tags) != 2 || !slices.Contains(tags, hapax.Tag{Name: name, Kind: hapax.KindUnreadable}) {
				t.Errorf("the tags are %.300v, %v; want one that is unreadable", tags, err)
			}
			if tags, err := s.TagsNamed(ctx, []string{"good", name}); err != nil || len(tags) != 1 || tags[0].Name != "good" {
				t.Errorf("the tags by name are %.300v, %v; want the good one", tags, err)
			}
			whole := tagKey("good")
			if after := dump(t, c); after[whole] != before[whole] || after[tagKey(name)] != before[tagKey(name)] {
				t.Errorf("a call that failed changed a tag")
			}
			if given, _, err := s.HandBackAllWith(ctx, pulse, back); err != nil || given[1] || dump(t, c)[tagKey(name)] != before[tagKey(name)] {
				t.Errorf("HandBackAllWith: %v, %v", given, err)
			}
			c.Del(ctx, tagKey(name))
			c.ZRem(ctx, "hapax:{hapax}:tags", name)
			if a, err := s.Allocate(ctx, "good", 10, ""); err != nil || a.Grant.Lo != good.Grant.Hi && a.Grant.Lo != 5 {
				t.Errorf("then %v, %v", a.Grant, err)
			}
			good = must[hapax.Allocation](t)(s.Allocate(ctx, "good", 10, ""))
		})
	}
	c.ZAdd(ctx, "hapax:{hapax}:tags", redis.Z{Member: long})
	_, err := s.Tags(ctx, "", 10)
	wantErr(t, "a name that is too long", err, hapax.ErrStoreCorrupt)
	c.ZRem(ctx, "hapax:{hapax}:tags", long)
	c.HSet(ctx, "hapax:{hapax}:rows", "beats\x00n", long)
	for what, call := range map[string]func() error{
		"Row":      func() error { _, err := s.Row(ctx, "beats", "n"); return err },
		"ListRows": func() error { _, err := s.ListRows(ctx, "beats", "", 10); return err },
		"Beat":     func() error { _, err := s.Beat(ctx, pulse); return err },
	} {
		wantErr(t, what, call(), hapax.ErrStoreCorrupt)
	}
	for _, id := range []string{long, ""} {
		c.HSet(ctx, "hapax:{hapax}:store", "id", id)
		wantErr(t, "Ping with another ID", s.Ping(ctx), hapax.ErrStoreReplaced)
	}
}

// A step is not done by half, whatever the server refuses: memory that has run out, replicas
// that are missing, a row of another type that comes last.
func TestWholeSteps(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s, c, ctx := open(t, srv.URL, redisstore.Options{}), raw(t, srv), t.Context()
	kv := s.KV()
	row := func(name string) driver.Key { return driver.Key{Table: "x", Name: name} }
	cell := func(key driver.Key) driver.Cell {
		return must[[]driver.Cell](t)(kv.Get(ctx, driver.Current, key))[0]
	}
	step := func() driver.Step {
		first := cell(row("first"))
		next := []byte("1")
		if first.Value != nil {
			next = nil
		}
		return driver.Step{
			Raise: []driver.Put{{Key: row("raised"), Value: fmt.Appendf(nil, "%d", 1+len(cell(row("raised")).Value))}},
			Then: []driver.Change{
				{Key: row("first"), Old: first, Next: next},
				{Key: driver.Key{Name: "second"}, Old: cell(driver.Key{Name: "second"}), Next: bytes.Repeat([]byte("2"), 1+len(cell(driver.Key{Name: "second"}).Value))},
			},
		}
	}
	if r, err := kv.Step(ctx, step()); err != nil || !r.Met {
		t.Fatal(r, err)
	}
	for _, setting := range [][3]string{{"maxmemory", "1", "0"}, {"min-replicas-to-write", "1", "0"}} {
		for round := range 2 { // one begins with a removal
			what := step()
			before := dump(t, c)
			c.ConfigSet(ctx, setting[0], setting[1])
			r, err := kv.Step(ctx, what)
			wantErr(t, "Ping with "+setting[0], s.Ping(ctx), hapax.ErrStoreUnavailable)
			c.ConfigSet(ctx, setting[0], setting[2])
			after := dump(t, c)
			if err == nil && r.Met {
				if cell(row("first")).Value != nil == (what.Then[0].Next == nil) || string(cell(driver.Key{Name: "second"}).Value) != string(what.Then[1].Next) {
					t.Errorf("%s, round %d: half of a step was done", setting[0], round)
				}
			} else if !maps.Equal(before, after) {
				t.Errorf("%s, round %d: %v, and %v became %v", setting[0], round, err, before, after)
			}
			if r, err := kv.Step(ctx, step()); err != nil || !r.Met {
				t.Fatal(r, err)
			}
		}
	}
	if r, err := kv.Step(ctx, driver.Step{Then: []driver.Change{{Key: row("large"), Old: driver.Cell{Known: true}, Next: []byte("x")}}}); err != nil || !r.Met {
		t.Fatal(r, err)
	}
	c.HSet(ctx, "hapax:{hapax}:rows", "x\x00large", strings.Repeat("x", driver.MaxValueBytes+1))
	before, what := dump(t, c), step()
	what.Each = []driver.Change{{Key: row("large"), Old: driver.Cell{Value: []byte("x"), Known: true}, Next: []byte("y")}}
	_, err := kv.Step(ctx, what)
	wantErr(t, "a row that is no tag and too long", err, hapax.ErrStoreCorrupt)
	if after := dump(t, c); !maps.Equal(before, after) {
		t.Error("half of a step was done before a row that is too long")
	}
	bad := driver.Change{Key: driver.Key{Name: "list"}, Old: driver.Cell{Known: true}, Next: []byte("x")}
	for spoilt, spoil := range map[string]func() error{
		"of another type": func() error { return c.LPush(ctx, tagKey("list"), "x").Err() },
		"too long":        func() error { return c.Set(ctx, tagKey("list"), strings.Repeat("x", driver.MaxValueBytes+1), 0).Err() },
	} {
		if err := errors.Join(c.Del(ctx, tagKey("list")).Err(), spoil()); err != nil {
			t.Fatal(err)
		}
		before := dump(t, c)
		what := step()
		what.Then = append(what.Then, bad)
		if r, err := kv.Step(ctx, what); err != nil || r.Met {
			t.Errorf("a row %s is changed with others: %v, %v", spoilt, r.Met, err)
		}
		if after := dump(t, c); !maps.Equal(before, after) {
			t.Errorf("a row %s: half of a step was done", spoilt)
		}
		what = step()
		what.Each = []driver.Change{bad}
		if r, err := kv.Step(ctx, what); err != nil || !r.Met || r.Each[0].Done || dump(t, c)[tagKey("list")] != before[tagKey("list")] {
			t.Errorf("a row %s is changed by itself: %v, %v", spoilt, r, err)
		}
	}
}

// A tag that the index lacks is in it after the next grant.
func TestMissingName(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s, c, ctx := open(t, srv.URL, redisstore.Options{}), raw(t, srv), t.Context()
	create(t, s, hapax.Tag{Name: "t"})
	c.ZRem(ctx, "hapax:{hapax}:tags", "t")
	allocate(t, s, "t", 1)
	if tags, err := s.Tags(ctx, "", 10); err != nil || len(tags) != 1 {
		t.Errorf("the tags are %v, %v", tags, err)
	}
}

// A row that is empty, as none of hapax is, is not taken for none; and a row that a step looks at is told
// as the step has left it.
func TestEmptyRows(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s, c, ctx := open(t, srv.URL, redisstore.Options{}), raw(t, srv), t.Context()
	key := driver.Key{Name: "t"}
	c.Set(ctx, tagKey("t"), "", 0)
	change := driver.Change{Key: key, Old: driver.Cell{Known: true}, Next: []byte("x")}
	for what, step := range map[string]driver.Step{
		"each":   {Each: []driver.Change{change}},
		"then":   {Then: []driver.Change{change}},
		"absent": {If: []driver.Cond{{Key: key}}},
	} {
		r := must[driver.Result](t)(s.KV().Step(ctx, step))
		if what == "each" && r.Each[0].Done || what != "each" && r.Met || c.Get(ctx, tagKey("t")).Val() != "" {
			t.Errorf("%s: %+v", what, r)
		}
	}
	c.Del(ctx, tagKey("t"))
	r := must[driver.Result](t)(s.KV().Step(ctx, driver.Step{Each: []driver.Change{change}, Look: []driver.Key{key}}))
	if !r.Each[0].Done || string(r.Look[0].Value) != "x" {
		t.Errorf("looked at after a change: %+v", r)
	}
}

// More rows than a script answers are listed in several, each of them once.
func TestManyRows(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s, ctx := open(t, srv.URL, redisstore.Options{}), t.Context()
	const rows = 1100
	for _, table := range []string{"x", ""} {
		var all []driver.Change
		for i := range rows {
			all = append(all, driver.Change{Key: driver.Key{Table: table, Name: fmt.Sprintf("%04d", i)}, Old: driver.Cell{Known: true}, Next: []byte("v")})
		}
		must[driver.Result](t)(s.KV().Step(ctx, driver.Step{Each: all}))
		for _, limit := range []int{499, 500, 501, 1000, rows, 2 * rows} {
			all := must[[]driver.Row](t)(s.KV().Scan(ctx, table, "", limit))
			if len(all) != min(limit, rows) {
				t.Errorf("table %q: %d of up to %d rows", table, len(all), limit)
			}
			for i, row := range all {
				if row.Name != fmt.Sprintf("%04d", i) {
					t.Fatalf("table %q: row %d is %q", table, i, row.Name)
				}
			}
		}
	}
}

// Rows that are more than one answer come in several, in order.
func TestLongAnswers(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	s, ctx := open(t, srv.URL, redisstore.Options{}), t.Context()
	const rows = 30
	var keys []driver.Key
	for i := range rows {
		for _, table := range []string{"x", ""} {
			key := driver.Key{Table: table, Name: fmt.Sprintf("%02d", i)}
			keys = append(keys, key)
			value := bytes.Repeat([]byte{byte('a' + i)}, driver.MaxValueBytes-i)
			if r, err := s.KV().Step(ctx, driver.Step{Each: []driver.Change{{Key: key, Old: driver.Cell{Known: true}, Next: value}}}); err != nil || !r.Each[0].Done {
				t.Fatal(r, err)
			}
		}
	}
	right := func(what, name string, value []byte) {
		t.Helper()
		i := must[int](t)(strconv.Atoi(name))
		if want := bytes.Repeat([]byte{byte('a' + i)}, driver.MaxValueBytes-i); !bytes.Equal(value, want) {
			t.Errorf("%s: row %s has %d bytes that begin with %.5q", what, name, len(value), value)
		}
	}
	for i, c := range must[[]driver.Cell](t)(s.KV().Get(ctx, driver.Current, keys...)) {
		right("Get", keys[i].Name, c.Value)
	}
	for _, table := range []string{"x", ""} {
		all := must[[]driver.Row](t)(s.KV().Scan(ctx, table, "", rows+1))
		if len(all) != rows || !slices.IsSortedFunc(all, func(a, b driver.Row) int { return strings.Compare(a.Name, b.Name) }) {
			t.Errorf("table %q: %d rows", table, len(all))
		}
		for _, row := range all {
			right("Scan", row.Name, row.Value)
		}
	}
}

// Round trips are as many as the documents say.
func TestRoundTrips(t *testing.T) {
	srv := testservers.Redis(t, "--appendfsync", "always")
	proxy := testservers.NewProxy(t, srv.Addr)
	s, ctx := open(t, proxy.URL(srv.URL)+"?pool_size=1", redisstore.Options{}), t.Context()
	was := driver.Beat{Count: 1}
	if ok, err := s.SwapRow(ctx, driver.TableBeats, "n", nil, was.Encode()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	pulse := func() driver.Pulse {
		p := driver.Pulse{Row: "n", Was: was, Now: driver.Beat{Count: was.Count + 1}}
		was = p.Now
		return p
	}
	const many = 500
	names, together := make([]string, many), []driver.AllocateOf{}
	for i := range names {
		names[i] = fmt.Sprint("t", i)
		create(t, s, hapax.Tag{Name: names[i]})
		together = append(together, driver.AllocateOf{Tag: names[i]})
	}
	var back []driver.HandBackOf
	var one hapax.Allocation
	met := func(c driver.Contact, err error) error {
		if err == nil && !c.Met {
			err = errors.New("not met")
		}
		return err
	}
	for _, c := range []struct {
		what string
		want int
		call func(context.Context) error
	}{
		{"Allocate", 1, func(ctx context.Context) (err error) { one, err = s.Allocate(ctx, "t0", 0, ""); return err }},
		{"HandBack", 1, func(ctx context.Context) error { return s.HandBack(ctx, one, one.Grant.Lo) }},
		{"Beat", 1, func(ctx context.Context) error { return met(s.Beat(ctx, pulse())) }},
		{"AllocateWith", 1, func(ctx context.Context) error {
			_, c, err := storetest.AllocateWith(ctx, s, pulse(), "t1", 0, "")
			return met(c, err)
		}},
		{"AllocateAllWith", 1, func(ctx context.Context) error {
			made, c, err := s.AllocateAllWith(ctx, pulse(), together)
			for _, m := range made {
				back = append(back, driver.HandBackOf{Allocation: m.Allocation, Next: m.Grant.Lo})
			}
			return met(c, err)
		}},
		{"HandBackAllWith", 1, func(ctx context.Context) error {
			_, c, err := s.HandBackAllWith(ctx, pulse(), back)
			return met(c, err)
		}},
		{"SwapRowWith, of a new row", 1, func(ctx context.Context) error {
			_, c, err := s.SwapRowWith(ctx, pulse(), "x", "y", nil, []byte("1"))
			return met(c, err)
		}},
		{"SwapRowWith", 1, func(ctx context.Context) error {
			_, c, err := s.SwapRowWith(ctx, pulse(), "x", "y", []byte("1"), []byte("2"))
			return met(c, err)
		}},
		{"SwapRows", 1, func(ctx context.Context) error {
			_, err := s.SwapRows(ctx, driver.Swap{Key: driver.Key{Table: "x", Name: "y"}, Old: []byte("2"), Next: []byte("2")},
				driver.Swap{Key: driver.Key{Table: "x", Name: "z"}, Next: []byte("1")})
			return err
		}},
		{"TagsNamed", 1, func(ctx context.Context) error { _, err := s.TagsNamed(ctx, names[:driver.MaxNamed]); return err }},
		{"Tags", 2, func(ctx context.Context) error { _, err := s.Tags(ctx, "", many); return err }},
		{"CreateTag", 1, func(ctx context.Context) error {
			_, err := s.CreateTag(ctx, hapax.Tag{Name: "new"}, hapax.CreateFirstUse)
			return err
		}},
		{"HealTag", 2, func(ctx context.Context) error { _, err := s.HealTag(ctx, hapax.Tag{Name: "new"}); return err }},
		{"Ping", 1, s.Ping},
	} {
		if c.what == "TagsNamed" || c.what == "Tags" || c.what == "Ping" { // the server learns the script
			if err := c.call(ctx); err != nil {
				t.Fatal(c.what, err)
			}
		}
		before := proxy.RoundTrips()
		if err := c.call(ctx); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if n := proxy.RoundTrips() - before; n != c.want {
			t.Errorf("%s takes %d round trips; want %d", c.what, n, c.want)
		}
	}
}
