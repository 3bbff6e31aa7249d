package storetest

import (
	"context"
	"math/rand/v2"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var healChecks = []check{
	{"heal/tag", guards, checkHealTag},
	{"heal/unknown tag", guards, checkHealUnknown},
	{"heal/deleted tag", guards, checkHealDeleted},
	{"heal/other kind", guards, checkHealKind},
	{"heal/hand-back", guards, checkHealHandBack},
	{"heal/at the same time", guards, checkHealChurn},
	{"heal/worker", guards, checkHealWorker},
}

func (e *env) heal(def hapax.Tag) hapax.Tag {
	e.Helper()
	t, err := e.healing.HealTag(e.ctx, def)
	e.must(err)
	equal(e, "the tag as it was healed", e.tag(def.Name), t)
	return t
}

// checkHealTag: mark and token are raised, together and above both, and the
// definition stays.
func checkHealTag(e *env) {
	want := e.create(hapax.Tag{Name: e.name("t"), Start: 5, Step: 10, Extra: "x", Delta: 3, Remainder: 1}, hapax.CreateFirstUse)
	for _, c := range []struct{ mark, token, wantMark, wantToken int64 }{
		{1000, 7, 1000, 8},
		{1000, 7, 1000, 9}, // again
		{10, 2, 1000, 10},
		{999, 1 << 40, 1000, 1<<40 + 1},
		{1 << 55, 0, 1 << 55, 1<<40 + 2},
		{hapax.MaxMark, 1 << 60, hapax.MaxMark, 1<<60 + 1},
	} {
		want.Mark, want.Token = c.wantMark, c.wantToken
		equal(e, "the healed tag", e.heal(hapax.Tag{Name: want.Name, Step: 77, Delta: 3, Remainder: 1, Mark: c.mark, Token: c.token}), want)
	}
	snow := e.create(hapax.Tag{Name: e.name("s"), Kind: hapax.KindSnowflake}, hapax.CreateFirstUse)
	snow.Token = 4
	equal(e, "the healed snowflake tag", e.heal(hapax.Tag{Name: snow.Name, Kind: hapax.KindSnowflake, Token: 3}), snow)
	for _, bad := range []hapax.Tag{{Name: want.Name, Token: -1}, {Name: want.Name, Mark: hapax.MaxMark + 1}, {Name: ""}} {
		_, err := e.healing.HealTag(e.ctx, bad)
		if hapax.CodeOf(err) != hapax.ErrInvalidArgument.Code() && hapax.CodeOf(err) != hapax.ErrInvalidTag.Code() {
			e.Errorf("HealTag of %+v: error is %v; want ErrInvalidArgument", bad, err)
		}
	}
	equal(e, "the tag after what was refused", e.tag(want.Name), want)
}

// checkHealUnknown: a tag that the store does not know is made, as a tombstone if
// it was one.
func checkHealUnknown(e *env) {
	def, err := hapax.Tag{Name: e.name("t"), Step: 10, Delta: 2, Remainder: 1, Mark: 500, Token: 6, Extra: "x"}.WithDefaults()
	e.must(err)
	want := def
	want.Token = 7
	equal(e, "the tag that was made", e.heal(def), want)
	equal(e, "the next grant", e.allocate(def.Name, 5).Grant, hapax.Grant{Lo: 500, Hi: 510})

	gone := e.heal(hapax.Tag{Name: e.name("gone"), Mark: 300, Token: 2, Deleted: true})
	equal(e, "the tombstone is one", gone.Deleted, true)
	equal(e, "its mark", gone.Mark, 300)
	equal(e, "its token", gone.Token, 3)
	whole, err := hapax.Tag{Name: gone.Name}.WithDefaults()
	e.must(err)
	_, err = e.store.CreateTag(e.ctx, whole, hapax.CreateFirstUse)
	e.wantErr("the first use of a healed tombstone", err, hapax.ErrTagDeleted)
	revived := e.create(hapax.Tag{Name: gone.Name}, hapax.CreateExplicit)
	equal(e, "the mark of the revived tag", revived.Mark, 300)
	equal(e, "the token of the revived tag", revived.Token, 3)
	equal(e, "the next grant of the revived tag", e.allocate(gone.Name, 1).Grant.Lo, 300)
	if tags, err := e.store.Tags(e.ctx, e.prefix, 2); err != nil || len(tags) != 2 {
		e.Errorf("the list has %+v, error %v; want both tags", tags, err)
	}
}

// checkHealDeleted: healing neither revives nor deletes.
func checkHealDeleted(e *env) {
	e.segment("gone", 10)
	gone, err := e.store.DeleteTag(e.ctx, e.name("gone"))
	e.must(err)
	healed := e.heal(hapax.Tag{Name: gone.Name, Mark: 100, Token: 5})
	equal(e, "the tombstone after healing is one", healed.Deleted, true)
	equal(e, "its mark", healed.Mark, 100)
	equal(e, "its token", healed.Token, 6)
	alive := e.segment("alive", 10)
	alive.Mark, alive.Token = 200, 1
	equal(e, "the live tag after healing", e.heal(hapax.Tag{Name: alive.Name, Mark: 200, Deleted: true}), alive)
}

func checkHealKind(e *env) {
	snow := e.create(hapax.Tag{Name: e.name("s"), Kind: hapax.KindSnowflake}, hapax.CreateFirstUse)
	seg := e.segment("t", 10)
	for _, bad := range []hapax.Tag{{Name: snow.Name, Mark: 5}, {Name: seg.Name, Kind: hapax.KindSnowflake}, {Name: snow.Name, Kind: hapax.KindSnowflake, Pool: e.name("other")}, {Name: seg.Name, Delta: 2}} {
		_, err := e.healing.HealTag(e.ctx, bad)
		e.wantErr("HealTag as another kind, or of other numbers", err, hapax.ErrKindMismatch)
	}
	equal(e, "the snowflake tag", e.tag(snow.Name), snow)
	equal(e, "the segment tag", e.tag(seg.Name), seg)
}

// checkHealHandBack: what was granted before a healing is not handed back, nor
// together with later grants.
func checkHealHandBack(e *env) {
	tag := e.segment("t", 10)
	a := e.allocate(tag.Name, 10)
	e.heal(hapax.Tag{Name: tag.Name, Mark: 1}) // which leaves the mark as it is
	e.refusesHandBack("a hand-back of what was granted before", a, 5)
	b := e.allocateAfter(tag.Name, 10, a.Key)
	equal(e, "where what was granted after may be handed back to", b.From, 11)
	forged := b
	forged.Tag.Token = a.Tag.Token
	e.refusesHandBack("a hand-back under the token from before", forged, 15)
	e.must(e.store.HandBack(e.ctx, b, 15))
}

// checkHealChurn: whatever else goes on, what is granted after a healing is above
// it, and the pair of token and mark only grows.
func checkHealChurn(e *env) {
	tag := e.segment("t", 10)
	var mu sync.Mutex // guards kept
	var kept []hapax.Grant
	inParallel(e, e.handles(5), func(ctx context.Context, h roles) error {
		var mine []hapax.Grant
		for range 12 {
			if rand.IntN(3) == 0 {
				if _, err := h.healing.HealTag(ctx, hapax.Tag{Name: tag.Name, Mark: 1 + rand.Int64N(400), Token: rand.Int64N(20)}); err != nil {
					return err
				}
			}
			before, err := h.store.Tag(ctx, tag.Name)
			if err != nil {
				return err
			}
			a, err := h.store.Allocate(ctx, tag.Name, 1+rand.Int64N(10), "")
			if err != nil {
				return err
			}
			if a.Tag.Token < before.Token || a.Tag.Token == before.Token && a.Tag.Mark <= before.Mark {
				e.Errorf("token and mark are %d and %d after %d and %d", a.Tag.Token, a.Tag.Mark, before.Token, before.Mark)
			}
			mine = append(mine, a.Grant)
			if next := a.Grant.Lo + rand.Int64N(a.Grant.Len()+1); rand.IntN(2) == 0 && h.store.HandBack(ctx, a, next) == nil {
				mine = cut(mine, next)
			}
		}
		mu.Lock()
		kept = append(kept, mine...)
		mu.Unlock()
		return nil
	})
	e.disjoint("what callers kept", kept, false)
}

// checkHealWorker: mark and token are raised, the lease ends, and the next one
// begins above.
func checkHealWorker(e *env) {
	lease := e.acquire(e.request("pool"))
	w := e.row(lease)
	healed, err := e.healing.HealWorker(e.ctx, layout.String(), driver.Worker{Pool: w.Pool, ID: w.ID, Mark: w.Mark + 50, Token: w.Token + 5})
	e.must(err)
	equal(e, "the mark of the healed worker", healed.Mark, w.Mark+50)
	equal(e, "the token of the healed worker", healed.Token, w.Token+6)
	equal(e, "the healed worker as stored", e.row(lease), healed)
	_, err = e.workers.ExtendWorker(e.ctx, lease, layout, e.extension(2000))
	e.wantErr("an extension after the healing", err, hapax.ErrLeaseLost)
	e.wantErr("a seal after the healing", e.workers.SealWorker(e.ctx, lease, lease.From), hapax.ErrLeaseLost)
	healed, err = e.healing.HealWorker(e.ctx, layout.String(), driver.Worker{Pool: w.Pool, ID: w.ID})
	e.must(err)
	equal(e, "the mark of the worker that was healed to less", healed.Mark, w.Mark+50)
	equal(e, "its token", healed.Token, w.Token+7)

	again := e.acquire(at(e.request("pool"), "holder", 1000))
	equal(e, "the worker's next lease begins above the mark", again.Worker != w.ID || again.Grant.Lo >= w.Mark+50, true)

	fresh, err := e.healing.HealWorker(e.ctx, layout.String(), driver.Worker{Pool: e.name("unknown"), ID: 3, Mark: 77, Token: 9})
	e.must(err)
	equal(e, "the mark of a worker of a pool that was unknown", fresh.Mark, 77)
	equal(e, "its token", fresh.Token, 10)
	_, err = e.healing.HealWorker(e.ctx, layoutAt("time:40,worker:11,sequence:12", 1000).String(), driver.Worker{Pool: w.Pool, ID: w.ID})
	e.wantErr("HealWorker with another layout", err, hapax.ErrLayoutMismatch)
}
