package redismongo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/moves"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/mongostore"
	"github.com/hapax-id/hapax/store/redisstore"
)

// tagName is the one tag of an old system.
const tagName = "orders"

// segmentOf is how many numbers the old service takes at a time.
const segmentOf = 10

// An oldSystem has one tag, whose old service issues for as long as nothing is shut. It knows
// each number that was issued, there or natively.
type oldSystem struct {
	t      *testing.T
	read   importing
	rdb    redis.UniversalClient
	c      *mongo.Collection
	issued map[int64]string
}

// oldSystems makes old systems on one Redis and one MongoDB.
func oldSystems(t *testing.T) func(t *testing.T, keep bool) *oldSystem {
	t.Helper()
	r, m := testservers.Redis(t), testservers.MongoDB(t)
	rdb, err := redisstore.NewClient(r.URL, patience.Call)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	db, err := mongostore.NewDatabase(m.URL, patience.Call)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disconnect(db) })
	made := 0
	return func(t *testing.T, keep bool) *oldSystem {
		t.Helper()
		made++
		name := fmt.Sprintf("seq%d", made)
		o := &oldSystem{t, importing{m.URL, name, r.URL, name + ":*", keep}, rdb, db.Collection(name), map[int64]string{}}
		if o.take(25) != 25 {
			t.Fatal("the old service is shut before anything was moved")
		}
		return o
	}
}

func (o *oldSystem) key() string { return strings.Replace(o.read.hash, "*", tagName, 1) }

var oldTake = redis.NewScript(`
local cur = tonumber(redis.call('HGET', KEYS[1], 'cur') or '0')
if cur >= tonumber(redis.call('HGET', KEYS[1], 'max') or '0') then return -1 end
return redis.call('HINCRBY', KEYS[1], 'cur', 1)
`)

// take lets the old service issue up to n numbers, and returns how many it could.
func (o *oldSystem) take(n int) int {
	o.t.Helper()
	ctx := context.WithoutCancel(o.t.Context())
	for k := 0; k < n; {
		at, err := oldTake.Run(ctx, o.rdb, []string{o.key()}).Int64()
		if err != nil {
			return k
		}
		if at >= 0 {
			o.note("the old service", at)
			k++
			continue
		}
		var doc struct{ Max int64 }
		err = o.c.FindOneAndUpdate(ctx, bson.D{{Key: "bizTag", Value: tagName}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "max", Value: segmentOf}}}},
			options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&doc)
		if err == nil {
			err = o.rdb.HSet(ctx, o.key(), "cur", doc.Max-segmentOf, "max", doc.Max, "step", segmentOf).Err()
		}
		if err != nil {
			return k
		}
	}
	return n
}

func (o *oldSystem) note(who string, n int64) {
	o.t.Helper()
	if by, twice := o.issued[n]; twice {
		o.t.Fatalf("%d is issued by %s and by %s", n, by, who)
	}
	o.issued[n] = who
}

// A command is one that has read an old system, for a store of its own.
type command struct {
	*oldSystem

	name  string
	store *memstore.Store
	imported
}

func (o *oldSystem) command(name string, store *memstore.Store) *command {
	o.t.Helper()
	read, err := o.read.read(o.t.Context(), nil, nil)
	if err != nil {
		o.t.Fatal(err)
	}
	return &command{o, name, store, read.(imported)}
}

// again is the same command, given once more.
func (c *command) again() *command { return c.command(c.name, c.store) }

func (c *command) id() string {
	id, err := c.store.StoreID(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return id
}

// run moves, or goes back, and returns what is in the way of the tag, too.
func (c *command) run(undo bool, target moves.Target) error {
	all, err := c.Move(c.t.Context(), target, mount.MoveOptions{
		Apply: true, Undo: undo, IgnoreLiving: true, Margin: 1,
		Bar: func(string) (func(int, int), func()) { return func(int, int) {}, func() {} },
	})
	for _, one := range all.Tags {
		err = errors.Join(err, one.Reason)
	}
	return err
}

// issues reports whether the tag issues natively.
func (c *command) issues() bool {
	c.t.Helper()
	a, err := c.store.Allocate(c.t.Context(), tagName, 2, "")
	switch {
	case errors.Is(err, hapax.ErrTagDeleted), errors.Is(err, hapax.ErrTagNotFound):
		return false
	case err != nil:
		c.t.Fatal(err)
	}
	for n := a.Grant.Lo; n < a.Grant.Hi; n++ {
		c.note("the store of "+c.name, n)
	}
	return true
}

// The changes of a move, and of the way back, at which something happens.
const (
	beforeHold = "before the tag is held"
	afterHold  = "after the tag is held"
	beforeHash = "before its hash is shut"
	afterHash  = "after its hash is shut"
	beforeTag  = "before the tag is made"
	afterTag   = "after the tag is made"

	beforeDelete = "before the tag is deleted"
	afterDelete  = "after the tag is deleted"
	beforeRenew  = "before its tombstone is renewed"
	afterRenew   = "after its tombstone is renewed"
	beforeReopen = "before its hash is opened"
	afterReopen  = "after its hash is opened"
)

var (
	errKilled = errors.New("killed")
	ofMove    = []string{beforeHash, afterHash, beforeTag, afterTag}
	ofWayBack = []string{beforeDelete, afterDelete, beforeReopen, afterReopen}
)

// interrupted is a command, its target and its Redis, at which do is called once when a change
// comes; where that fails, the command is killed there.
type interrupted struct {
	moves.Target

	undo bool
	at   string
	do   func() error
	done bool
	dead bool
}

func (i *interrupted) step(at string) error {
	if i.dead {
		return errKilled // it makes no other change
	}
	if at != i.at || i.done {
		return nil
	}
	i.done = true
	err := i.do()
	i.dead = err != nil
	return err
}

func (i *interrupted) CreateTag(ctx context.Context, tag hapax.Tag, mode hapax.CreateMode) (made hapax.Tag, err error) {
	before, after := beforeTag, afterTag
	switch {
	case mode == hapax.CreateTombstone && i.undo:
		before, after = beforeRenew, afterRenew
	case mode == hapax.CreateTombstone:
		before, after = beforeHold, afterHold
	}
	if err = i.step(before); err == nil {
		if made, err = i.Target.CreateTag(ctx, tag, mode); err == nil {
			err = i.step(after)
		}
	}
	return made, err
}

func (i *interrupted) DeleteTag(ctx context.Context, name string) (was hapax.Tag, err error) {
	if err = i.step(beforeDelete); err == nil {
		if was, err = i.Target.DeleteTag(ctx, name); err == nil {
			err = i.step(afterDelete)
		}
	}
	return was, err
}

func (i *interrupted) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (i *interrupted) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (i *interrupted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Name() == "hset" }) {
			return next(ctx, cmds)
		}
		before, after := beforeHash, afterHash
		if i.undo {
			before, after = beforeReopen, afterReopen
		}
		err := i.step(before)
		if err == nil {
			if err = next(ctx, cmds); err == nil {
				err = i.step(after)
			}
		}
		return err
	}
}

// runInterrupted runs a command, with something else at one of its changes.
func (c *command) runInterrupted(undo bool, at string, do func() error) error {
	c.t.Helper()
	i := &interrupted{Target: c.store, undo: undo, at: at, do: do}
	c.opened = func(s sources) sources { s.rdb.AddHook(i); return s }
	err := c.run(undo, i)
	if !i.done {
		c.t.Fatalf("the command has no change %q: %v", at, err)
	}
	return err
}

// An expectation tells who issues.
func (o *oldSystem) expect(old bool, all map[*command]bool) {
	o.t.Helper()
	if n := o.take(30); (n == 30) != old {
		o.t.Fatalf("the old service issues %d of 30 numbers; want all of them: %v", n, old)
	}
	o.expectNative(all)
}

func (o *oldSystem) expectNative(all map[*command]bool) {
	o.t.Helper()
	for c, want := range all {
		if got := c.issues(); got != want {
			o.t.Fatalf("the store of %s issues: %v; want %v", c.name, got, want)
		}
	}
}

// Two commands for two stores have read an old system while it was open, and the second one comes
// in at each change of the first: one of them has the tag, and the other one is told whose it is,
// and has none. A command that is killed at any change leaves nothing open twice, and the same
// command, or the way back, goes on from there.
func TestTwoStores(t *testing.T) {
	system := oldSystems(t)
	for _, keep := range []bool{false, true} {
		name := map[bool]string{false: "closed", true: "collection kept"}[keep]
		for _, at := range ofMove {
			t.Run(name+"/second "+at, func(t *testing.T) { twoMoves(t, system(t, keep), at) })
			t.Run(name+"/killed "+at, func(t *testing.T) { killedMove(t, system, keep, at) })
		}
		for _, at := range ofWayBack {
			t.Run(name+"/way back killed "+at, func(t *testing.T) { killedWayBack(t, system(t, keep), at) })
		}
		t.Run(name+"/at once", func(t *testing.T) { atOnce(t, system(t, keep)) })
		t.Run(name+"/Redis emptied", func(t *testing.T) { emptied(t, system(t, keep)) })
	}
	for _, at := range []string{beforeHash, afterHash} {
		t.Run("the old service goes on "+at, func(t *testing.T) { goesOn(t, system(t, false), at) })
	}
}

func twoMoves(t *testing.T, o *oldSystem, at string) {
	a, b := o.command("A", memstore.New()), o.command("B", memstore.New())
	var errB error
	errA := a.runInterrupted(false, at, func() error { errB = b.run(false, b.store); return nil })
	won, lost, told := a, b, errB
	if at == beforeHash {
		won, lost, told = b, a, errA
	}
	if errA != nil && errB != nil || told == nil || !strings.Contains(told.Error(), won.id()) {
		t.Fatalf("A: %v; B: %v; want one of them told of store %s", errA, errB, won.id())
	}
	now := map[*command]bool{won: true, lost: false}
	check := func() {
		t.Helper()
		if !o.read.keep { // else its account in MongoDB is to be taken away
			o.expect(false, nil)
		}
		o.expectNative(now)
	}
	check()
	for _, undo := range []bool{false, true} {
		if err := lost.again().run(undo, lost.store); err == nil || !strings.Contains(err.Error(), won.id()) {
			t.Errorf("the one that lost, once more, back %v: %v", undo, err)
		}
	}
	if err := won.again().run(false, won.store); err != nil {
		t.Errorf("the one that won, once more: %v", err)
	}
	check()

	// A way back that was planned before the tag went over to the other store leaves it alone.
	late := won.again()
	if err := errors.Join(won.again().run(true, won.store), lost.again().run(false, lost.store)); err != nil {
		t.Fatal(err)
	}
	if err := late.run(true, late.store); err == nil || !strings.Contains(err.Error(), lost.id()) {
		t.Errorf("a way back that is late: %v", err)
	}
	now[won], now[lost] = false, true
	check()
}

// killedMove has a tag that was moved, and given back, before: its tombstone is there.
func killedMove(t *testing.T, system func(*testing.T, bool) *oldSystem, keep bool, at string) {
	for _, then := range []string{"repeated", "back", "back, with numbers taken"} {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/tombstone %v", then, before), func(t *testing.T) {
				o := system(t, keep)
				a, b := o.command("A", memstore.New()), memstore.New()
				if before {
					if err := errors.Join(a.run(false, a.store), a.again().run(true, a.store)); err != nil {
						t.Fatal(err)
					}
					o.expect(true, map[*command]bool{a: false})
					a = a.again()
				}
				if then == "back, with numbers taken" { // since the command has read, and further than its margin
					o.expect(true, nil)
				}
				if err := a.runInterrupted(false, at, func() error { return errKilled }); !errors.Is(err, errKilled) {
					t.Fatal(err)
				}
				a = a.again()
				other := o.command("B", b)
				switch {
				case at == beforeHash:
					o.expect(true, map[*command]bool{a: false})
				case !keep && at != afterHash:
					o.expect(false, map[*command]bool{a: at == afterTag})
				}
				if err := other.run(false, b); (err == nil) != (at == beforeHash) || err != nil && !strings.Contains(err.Error(), a.id()) {
					t.Fatalf("the other store: %v", err)
				}
				if at == beforeHash {
					o.expectNative(map[*command]bool{a: false, other: true})
					return
				}
				if err := a.again().run(then != "repeated", a.store); err != nil {
					t.Fatal(err)
				}
				if then == "repeated" {
					if !keep {
						o.expect(false, nil)
					}
					o.expectNative(map[*command]bool{a: true, other: false})
				}
				if then != "repeated" {
					o.expect(true, map[*command]bool{a: false, other: false})
					if err := o.command("B", b).run(false, b); err != nil {
						t.Fatal(err)
					}
					o.expectNative(map[*command]bool{a: false, other: true})
				}
			})
		}
	}
}

func killedWayBack(t *testing.T, o *oldSystem, at string) {
	a, b := o.command("A", memstore.New()), memstore.New()
	if err := a.run(false, a.store); err != nil {
		t.Fatal(err)
	}
	for range 40 { // more than a segment of the old service
		o.expectNative(map[*command]bool{a: true})
	}
	if err := a.again().runInterrupted(true, at, func() error { return errKilled }); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	o.expectNative(map[*command]bool{a: at == beforeDelete})
	if at == beforeReopen || at == afterReopen { // the documents are open
		o.expect(true, nil)
	}
	if err := a.again().run(true, a.store); err != nil {
		t.Fatal(err)
	}
	o.expect(true, map[*command]bool{a: false})
	if err := a.again().run(false, a.store); err != nil {
		t.Fatal(err)
	}
	other := o.command("B", b)
	if err := other.run(false, b); err == nil || !strings.Contains(err.Error(), a.id()) {
		t.Fatalf("the other store: %v", err)
	}
	o.expectNative(map[*command]bool{a: true, other: false})
}

// atOnce lets both go together.
func atOnce(t *testing.T, o *oldSystem) {
	all := []*command{o.command("A", memstore.New()), o.command("B", memstore.New())}
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for k, c := range all {
		wg.Go(func() { errs[k] = c.run(false, c.store) })
	}
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatalf("%v; %v; want one of them refused", errs[0], errs[1])
	}
	o.expectNative(map[*command]bool{all[0]: errs[0] == nil, all[1]: errs[1] == nil})
}

// emptied has Redis lose the hash of a tag that was moved: the document tells whose it is.
func emptied(t *testing.T, o *oldSystem) {
	a, b := o.command("A", memstore.New()), o.command("B", memstore.New())
	if err := a.run(false, a.store); err != nil {
		t.Fatal(err)
	}
	for range 40 {
		o.expectNative(map[*command]bool{a: true})
	}
	if err := o.rdb.Del(t.Context(), o.key()).Err(); err != nil {
		t.Fatal(err)
	}
	for _, undo := range []bool{false, true} {
		if err := b.again().run(undo, b.store); err == nil || !strings.Contains(err.Error(), a.id()) {
			t.Errorf("another store, back %v: %v", undo, err)
		}
	}
	if err := a.again().run(false, a.store); err != nil {
		t.Error(err)
	}
	o.expectNative(map[*command]bool{a: true, b: false})
	if err := a.again().run(true, a.store); err != nil {
		t.Fatal(err)
	}
	o.expect(true, map[*command]bool{a: false, b: false})
}

// goesOn has the old service issue while it is shut, further than the margin.
func goesOn(t *testing.T, o *oldSystem, at string) {
	a := o.command("A", memstore.New())
	if err := a.runInterrupted(false, at, func() error { o.take(1000); return nil }); err != nil {
		t.Fatal(err)
	}
	o.expect(false, map[*command]bool{a: true})
	if err := a.again().run(true, a.store); err != nil {
		t.Fatal(err)
	}
	o.expect(true, map[*command]bool{a: false})
}

// Where another store grants the segments, the tags' marks do not tell what was issued, so that
// neither a move nor the way back is made.
func TestMoveBesideAnotherStore(t *testing.T) {
	o := oldSystems(t)(t, false)
	a := o.command("A", memstore.New())
	for _, undo := range []bool{false, true} {
		_, err := a.Move(t.Context(), a.store, mount.MoveOptions{
			Apply: true, Undo: undo, IgnoreLiving: true,
			Settings: func(string) (mount.Settings, error) { return &Settings{Store: "redis://127.0.0.1/1"}, nil },
		})
		if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "compat.redismongo.store") {
			t.Errorf("back %v: %v", undo, err)
		}
	}
	o.expect(true, map[*command]bool{a: false})
}
