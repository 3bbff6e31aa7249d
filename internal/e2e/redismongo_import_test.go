package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/collection"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/mongostore"
)

// An oldIssuer counts as the original does: a hash with cur, max and step, in segments of a
// collection; or, where MongoDB is away, in segments that the script makes itself.
type oldIssuer struct {
	t      *testing.T
	rdb    *redis.Client
	c      *mongo.Collection
	issued map[string]map[hapax.ID]bool
}

var oldTake = redis.NewScript(`
local cur = tonumber(redis.call('HGET', KEYS[1], 'cur') or '0')
local max = tonumber(redis.call('HGET', KEYS[1], 'max') or '0')
if cur >= max then
  if ARGV[1] == '' then return -1 end
  redis.call('HINCRBY', KEYS[1], 'max', ARGV[1])
end
return redis.call('HINCRBY', KEYS[1], 'cur', 1)
`)

// oldSum is oldTake as somebody wrote it who adds in Lua: it raises max, and then fails.
var oldSum = redis.NewScript(`
local max = tonumber(redis.call('HGET', KEYS[1], 'max'))
if tonumber(redis.call('HGET', KEYS[1], 'cur')) >= max then
  redis.call('HSET', KEYS[1], 'max', max + tonumber(ARGV[1]))
end
return redis.call('HINCRBY', KEYS[1], 'cur', 1)
`)

func (o *oldIssuer) next(tag string, step int64, alone bool) {
	o.t.Helper()
	n, err := o.try(tag, step, alone)
	if err != nil {
		o.t.Fatal(err)
	}
	if o.issued[tag] == nil {
		o.issued[tag] = map[hapax.ID]bool{}
	}
	if o.issued[tag][n] {
		o.t.Errorf("the old service issues %d of %s twice", n, tag)
	}
	o.issued[tag][n] = true
}

func (o *oldIssuer) try(tag string, step int64, alone bool) (hapax.ID, error) {
	ctx, key, own := o.t.Context(), "seq:"+tag, ""
	if alone {
		own = fmt.Sprint(step)
	}
	for {
		n, err := oldTake.Run(ctx, o.rdb, []string{key}, own).Int64()
		if err != nil || n > 0 {
			return hapax.ID(n), err
		}
		var doc struct{ Max int64 }
		err = o.c.FindOneAndUpdate(ctx, bson.D{{Key: "bizTag", Value: tag}},
			bson.D{{Key: "$inc", Value: bson.D{{Key: "max", Value: step}}}, {Key: "$set", Value: bson.D{{Key: "step", Value: step}, {Key: "timestamp", Value: time.Now().UnixMilli()}}}},
			options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&doc)
		if err == nil {
			err = o.rdb.HSet(ctx, key, "cur", doc.Max-step, "max", doc.Max, "step", step).Err()
		}
		if err != nil {
			return 0, err
		}
	}
}

// The page's move goes on above both sources, natively and without scripts, and keeps the
// collection; what it prints is safe before the move is made.
func TestImportRedisMongo(t *testing.T) {
	t.Parallel()
	m, r := testservers.MongoDB(t), testservers.Redis(t)
	db, err := mongostore.NewDatabase(m.URL, patience.Call)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Client().Disconnect(context.Background())
	o, err := redis.ParseURL(r.URL)
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(o)
	defer rdb.Close()
	old := &oldIssuer{t, rdb, db.Collection("sequence"), map[string]map[hapax.ID]bool{}}
	for range 230 {
		old.next("orders", 100, false)
		old.next("users", 50, false)
	}
	for range 400 { // MongoDB is away: its document stays behind
		old.next("users", 50, true)
		old.next("codes", 20, true) // it has no document at all
	}
	_, err = old.c.InsertOne(t.Context(), bson.D{{Key: "bizTag", Value: "idle"}, {Key: "max", Value: 7000.0}, {Key: "step", Value: 30}, {Key: "owner", Value: "nobody"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := rdb.HSet(t.Context(), "seq:settings", "colour", "blue").Err(); err != nil { // no cursor
		t.Fatal(err)
	}
	tags := map[string]int64{"orders": 100, "users": 50, "codes": 20, "idle": 30} // by step

	dir := t.TempDir()
	p := openPage(t, "docs/coming-from-redis-mongo.md", dir, "mongodb://10.0.0.3/shop", m.URL, "redis://10.0.0.4:6379/0", r.URL,
		"--dry-run", "--watch 50ms --dry-run", "--apply", "--watch 50ms --apply")
	p.run("> hapax.yaml")
	printed := read(t, dir, "hapax.yaml")
	for _, line := range []string{
		`#   orders: numbers up to 300 (the document says 300, the hash 230 of 300), step 100`,
		`#   users: numbers up to 650 (the document says 250, the hash 630 of 650), step 50`,
		`#   codes: numbers up to 400, no document (the hash says 400 of 400)`,
		`#   idle: numbers up to 7000, no hash, step 30; without effect here: owner`,
	} {
		if !strings.Contains(printed, line+"\n") {
			t.Errorf("%q is not in the block:\n%s", line, printed)
		}
	}
	if strings.Contains(printed, "settings") {
		t.Errorf("a hash that is no cursor is in the block:\n%s", printed)
	}
	before := t.TempDir() // where no server was started yet
	write(t, before, "hapax.yaml", printed)
	if r := run(t, before, "import", "redis-mongo", "--mongodb", m.URL, "--collection", "sequence", "--redis", r.URL, "--hash", "seq:*", "--config", "hapax.yaml", "--dry-run", "--watch", "50ms"); r.code != 0 || strings.Count(r.out, "\n") != len(tags) {
		t.Errorf("before any server: %+v", r)
	}
	write(t, before, "hapax.yaml", printed+"    store: "+r.URL+"\n") // grants the segments, so that the tags' marks tell nothing
	if r := run(t, before, "import", "redis-mongo", "--mongodb", m.URL, "--collection", "sequence", "--redis", r.URL, "--hash", "seq:*", "--config", "hapax.yaml", "--dry-run", "--watch", "50ms"); r.code == 0 || !strings.Contains(r.err, "compat.redismongo.store") {
		t.Errorf("beside another store: %+v", r)
	}
	early := serve(t, dir, nil, "--config", "hapax.yaml")
	for tag := range tags {
		patience.Until(t, "a refusal of "+tag, func() bool {
			ids, err := take(http.DefaultClient, early.url, tag, 1)
			if err == nil {
				t.Fatalf("before the move %s is given %v", tag, ids)
			}
			return strings.Contains(err.Error(), "tag_not_found") // it may have to join first
		})
	}
	early.stop()

	move := []string{"import", "redis-mongo", "--mongodb", m.URL, "--collection", "sequence", "--redis", r.URL, "--hash", "seq:*"}
	if r := run(t, dir, append(move, "--apply", "--watch", "50ms", "--data", "other")...); r.code == 0 || !strings.Contains(r.err, "give --config") {
		t.Errorf("without the configuration: %+v", r)
	}
	for tag := range tags {
		if taken, err := rdb.HExists(t.Context(), "seq:"+tag, "hapax_store").Result(); err != nil || taken {
			t.Errorf("without the configuration %s is taken: %v, %v", tag, taken, err)
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				old.next("orders", 100, false)
			}
		}
	}()
	alive := run(t, dir, append(move, "--config", "hapax.yaml", "--apply", "--watch", "5s")...) // in which it goes on, however busy the machine is
	close(stop)
	<-stopped
	if alive.code == 0 || !strings.Contains(alive.err, "still issuing") {
		t.Errorf("with a node that is alive: %+v", alive)
	}

	if out := p.run("--dry-run"); !strings.Contains(out, "idle\t-\t7301\tnew; row closed: ") || !strings.Contains(out, "users\t-\t1151\tnew; row closed: ") || !strings.Contains(out, "codes\t-\t10401\tnew; row closed: ") {
		t.Errorf("the dry run: %s", out)
	}
	apply, start, _ := strings.Cut(p.next("--apply"), "hapax serve")
	p.shell(apply)
	if out := p.shell(apply); strings.Count(out, "nothing to do") != len(tags) {
		t.Errorf("a repetition: %s", out)
	}
	if len(p.blocks) > 0 {
		t.Errorf("not run: %q", p.blocks)
	}
	for _, way := range [][]string{{"--apply", "--watch", "50ms"}, {"--undo"}} { // another store can neither take the tags nor open them
		r := run(t, dir, slices.Concat(move, []string{"--config", "hapax.yaml", "--store", "bolt:" + filepath.Join(t.TempDir(), "other.db")}, way)...)
		if r.code == 0 || strings.Count(r.out, "was taken for store") != len(tags) {
			t.Errorf("another store, %v: %+v", way, r)
		}
	}
	// The old door is closed, at Redis and, where Redis has lost its hash, at MongoDB.
	for tag, step := range tags {
		for _, alone := range []bool{true, false} {
			if n, err := old.try(tag, step, alone); err == nil {
				t.Errorf("the old service issues %d of %s after the move", n, tag)
			}
		}
		if n, err := oldSum.Run(t.Context(), rdb, []string{"seq:" + tag}, 100).Int64(); err == nil {
			t.Errorf("the old service that adds by itself issues %d of %s after the move", n, tag)
		}
	}
	if err := rdb.Del(t.Context(), "seq:orders", "seq:codes").Err(); err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"orders", "codes"} {
		if n, err := old.try(tag, 100, false); err == nil {
			t.Errorf("the old service issues %d of %s from its document after the move", n, tag)
		}
	}

	// The way back opens it above all that was issued natively; then the move is made again,
	// for programs that watch the collection.
	undo := append(slices.Clone(move), "--config", "hapax.yaml", "--undo")
	if shown := run(t, dir, append(slices.Clone(undo), "--dry-run")...); shown.code != 0 || strings.Count(shown.out, "row opened above it") != len(tags) || !strings.Contains(shown.err, "nothing was changed") {
		t.Errorf("the way back, shown: %+v", shown)
	}
	if out := ok(t, dir, undo...); strings.Count(out, "row opened above it") != len(tags) {
		t.Errorf("the way back: %s", out)
	}
	if r := run(t, dir, undo...); r.code != 0 || !strings.Contains(r.err, "no row is closed") {
		t.Errorf("the way back, repeated: %+v", r)
	}
	for tag, step := range tags {
		for range 30 {
			old.next(tag, step, tag == "codes")
		}
	}
	again := run(t, dir, append(slices.Clone(move), "--keep-collection", "--config", "hapax.yaml", "--apply", "--watch", "50ms")...)
	if again.code != 0 || !strings.Contains(again.err, "the documents stay open") || strings.Count(again.out, "row closed: cur and max of its hash are the largest number\n") != len(tags) {
		t.Errorf("the move, made again: %+v", again)
	}
	write(t, dir, "hapax.yaml", ok(t, dir, append(move, "--keep-collection")...)+"    without_eval: true\n")
	s := p.serve("hapax serve" + start)
	for tag, step := range tags {
		top := slices.Max(append(slices.Collect(maps.Keys(old.issued[tag])), 0))
		b := &risingBook{t: t, last: top, all: old.issued[tag]}
		if b.all == nil {
			b.all = map[hapax.ID]bool{}
		}
		b.note(eventuallyTake(t, s, tag, 1), true)
		for range 20 {
			b.note(mustTake(t, s, tag, 11), true)
		}
		last := b.last
		patience.Until(t, "the document of "+tag, func() bool {
			all, err := collection.Read(t.Context(), old.c)
			if err != nil {
				t.Fatal(err)
			}
			d := collection.Merge(all)[tag]
			return d.Max >= int64(last) && d.Timestamp > 0
		})
		first := rdb.HGet(t.Context(), "hapax:seq:{"+tag+"}", "step").Val()
		if tag != "codes" && first == fmt.Sprint(hapax.DefaultStep) || first == "" {
			t.Errorf("%s has segments of %s; its step is %d", tag, first, step)
		}
	}
	if s.stop() != 0 {
		t.Error("the server did not stop well")
	}

	// What cannot be read is refused by name.
	_, err = old.c.InsertOne(t.Context(), bson.D{{Key: "bizTag", Value: "bad"}, {Key: "max", Value: "12"}})
	if err := errors.Join(err, rdb.HSet(t.Context(), "seq:worse", "cur", "x").Err()); err != nil {
		t.Fatal(err)
	}
	bad := run(t, dir, append(move, "--config", "hapax.yaml", "--dry-run", "--watch", "1ms")...)
	if bad.code != 1 || !strings.Contains(bad.out, "bad\t-\t-\thapax: invalid max of the document") || !strings.Contains(bad.out, "worse\t-\t-\thapax: invalid cur of the hash seq:worse") || !strings.Contains(bad.err, "2 of the rows cannot be moved") {
		t.Errorf("what cannot be read: %+v", bad)
	}
	for name, args := range map[string][]string{
		"a file":        append(slices.Clone(move), "x.properties"),
		"no collection": {"import", "redis-mongo", "--mongodb", m.URL, "--redis", r.URL, "--hash", "*"},
		"no pattern":    {"import", "redis-mongo", "--mongodb", m.URL, "--redis", r.URL, "--hash", "seq", "--collection", "sequence"},
		"nothing there": {"import", "redis-mongo", "--mongodb", m.URL, "--redis", r.URL, "--hash", "none:*", "--collection", "none"},
		"no URL":        {"import", "redis-mongo", "--mongodb", "10.0.0.3/shop", "--redis", r.URL, "--hash", "*", "--collection", "sequence"},
	} {
		if r := run(t, dir, args...); r.code != 2 || r.out != "" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	for k, config := range blocks(t, "docs/coming-from-redis-mongo.md", "yaml") {
		ok(t, t.TempDir(), "serve", "--print-config", "--config", write(t, dir, fmt.Sprintf("page%d.yaml", k), config))
	}
}
