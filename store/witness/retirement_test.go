package witness

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// retirement is that of the scene's store for a copy, some minutes after noon.
func (c *scene) retirement(number string, minutes int) driver.Retirement {
	c.t.Helper()
	id, err := c.store.Store.StoreID(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return driver.Retirement{Copy: number, Store: id, To: "redis://" + number + "/0", At: time.Date(2026, 11, 28, 12, minutes, 0, 0, time.UTC), By: "here"}
}

// knowsCopies has the witness know copies of the scene's store, and that it is its own.
func (c *scene) knowsCopies(all ...driver.Retirement) {
	c.t.Helper()
	c.know(func(b *record) {
		for _, r := range all {
			b.Store, b.Copies[r.Copy] = r.Store, r
		}
	})
}

// retiredScene is one whose process has seen its store retired for copy C.
func retiredScene(t *testing.T) (*scene, driver.Retirement) {
	t.Helper()
	c := newScene(t)
	c.joins(1)
	c.member(1, 2)
	r := c.retirement("C", 0)
	c.know(func(b *record) { b.Store = r.Store })
	if err := c.g.ifRetired(r.Err()); !errors.Is(err, hapax.ErrStoreRetired) || !errors.Is(err, hapax.ErrFenced) {
		t.Fatalf("a store that is retired: %v; want a refusal", err)
	}
	if c.g.state != Refusing || !c.g.witness.latch().isRetired() {
		t.Fatalf("it is %s, latched %+v", c.g.state, c.g.witness.latch())
	}
	return c, r
}

// What another store says of itself, and other errors, are no verdict about this node's; one that closes refuses
// for that.
func TestWhoseStoreIsRetired(t *testing.T) {
	c := newScene(t)
	r := c.retirement("C", 0)
	c.know(func(b *record) { b.Store = "another" })
	for _, err := range []error{r.Err(), errInjected} {
		if got := c.g.ifRetired(err); got != err || c.g.state != Joining || c.g.witness.latch().State != "" {
			t.Errorf("%v: %v, and the node is %s", err, got, c.g.state)
		}
	}
	c.know(func(b *record) { b.Store = r.Store })
	if err := c.g.replaceLost(c.g.calls, c.store, r.Err()); !errors.Is(err, hapax.ErrStoreRetired) || !errors.Is(err, hapax.ErrFenced) || c.g.state != Refusing {
		t.Errorf("a change that its driver refuses: %v, and the node is %s", err, c.g.state)
	}
	c.g.state = Leaving
	if err := c.g.ifRetired(r.Err()); !errors.Is(err, hapax.ErrClosed) || c.g.state != Left {
		t.Errorf("a node that is closed: %v, and it is %s", err, c.g.state)
	}
}

// A node of a retired store joins the store that goes on, where its witness can be written, and no other.
func TestFollowsItsStore(t *testing.T) {
	c, r := retiredScene(t)
	if err := c.g.follow(t.Context(), c.store, r); err != nil || c.g.state != Refusing || c.g.GoesOn(t.Context()) {
		t.Errorf("on the retired store: %v, and it is %s", err, c.g.state)
	}
	c.store.reset(1)
	if !c.g.GoesOn(t.Context()) {
		t.Error("a store that does not answer does not go on")
	}
	c.store.reset(0)
	c.put(driver.TableGuard, driver.RowCopied("C"), driver.EncodeRow(r))
	if !c.g.GoesOn(t.Context()) {
		t.Error("the copy does not go on")
	}
	if err := c.g.mayDeclare(t.Context(), c.store); err != nil || c.g.state != Joining || c.g.witness.latch().State != "" || len(c.g.kick) != 1 {
		t.Errorf("on the copy: %v, and it is %s, latched %+v", err, c.g.state, c.g.witness.latch())
	}

	c, r = retiredScene(t)
	c.put(driver.TableGuard, driver.RowCopied("C"), driver.EncodeRow(r))
	if err := c.g.witness.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.g.mayDeclare(t.Context(), c.store); !errors.Is(err, hapax.ErrClosed) || c.g.state != Refusing {
		t.Errorf("a witness that cannot be written: %v, and it is %s", err, c.g.state)
	}
}

// An operator's word waits for the node's verdict, and is refused where that is that the store is retired, or was
// from before its copy.
func TestOperatorOfARetiredStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t)
		c.joins(1)
		r := c.retirement("C", 0)
		c.know(func(b *record) { b.Store = r.Store })
		if _, err := c.g.awaitDeclarable(t.Context(), c.store, time.Second); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("a node without a verdict: %v", err)
		}
		time.AfterFunc(500*time.Millisecond, func() { _ = c.g.ifRetired(r.Err()) })
		if _, err := c.g.awaitDeclarable(t.Context(), c.store, time.Second); !errors.Is(err, hapax.ErrStoreRetired) {
			t.Errorf("a store that is found to be retired: %v", err)
		}
		c, r = retiredScene(t)
		c.put(driver.TableGuard, driver.RowCopied("C"), driver.EncodeRow(r))
		if _, err := c.g.awaitDeclarable(t.Context(), c.store, time.Second); !errors.Is(err, hapax.ErrStoreUnavailable) || c.g.state != Joining {
			t.Errorf("on the copy, where the node does not join: %v, and it is %s; want its verdict awaited there", err, c.g.state)
		}
		c = newScene(t)
		c.joins(1)
		c.member(1, 2)
		if wrong, err := c.g.awaitDeclarable(t.Context(), c.store, time.Second); wrong || err != nil {
			t.Errorf("a store that serves: %v, %v", wrong, err)
		}
		c.knowsCopies(c.retirement("C", 0))
		if _, err := c.g.awaitDeclarable(t.Context(), c.store, time.Second); !errors.Is(err, hapax.ErrStoreRetired) {
			t.Errorf("one from before its copy: %v", err)
		}
	})
}

// Copies are read from their rows alone. One that was given up has a row with what took its place; one whose value
// is damaged counts by the row's name, for the store that has it.
func TestCopiesIn(t *testing.T) {
	c := newScene(t)
	r := c.retirement("D", 0)
	r.Former = []string{"C"}
	raw, homeless, other := driver.EncodeRow(r), r, r
	homeless.Copy, homeless.Store, other.Copy = "H", "", "X"
	all, damaged := copiesIn(map[string][]byte{
		driver.RowCopied("C"): raw, driver.RowCopied("D"): raw, driver.RowJoins: []byte("7"),
		driver.RowCopied("E"): []byte("?"), driver.RowCopied("F"): []byte("{}"), driver.RowCopied("H"): driver.EncodeRow(homeless), driver.RowCopied("Y"): driver.EncodeRow(other),
	})
	all.addDamaged(damaged, "id")
	if len(all) != 5 || all["D"].To != r.To {
		t.Errorf("they are read as %+v", all)
	}
	if want := []string{"copied/E", "copied/F", "copied/H", "copied/Y"}; !slices.Equal(damaged, want) {
		t.Errorf("damaged are %q; want %q", damaged, want)
	}
	for _, number := range []string{"E", "F", "H", "Y"} {
		if want := (driver.Retirement{Copy: number, Store: "id"}); !reflect.DeepEqual(all[number], want) {
			t.Errorf("copy %s is read as %+v; want %+v", number, all[number], want)
		}
	}
	// What took its place tells of it.
	all, damaged = copiesIn(map[string][]byte{driver.RowCopied("C"): raw, driver.RowCopied("D"): []byte("?")})
	if all.addDamaged(damaged, "id"); len(all) != 1 || all["D"].To != r.To || len(damaged) != 1 {
		t.Errorf("read as %+v, damaged are %q", all, damaged)
	}
	blank := driver.Retirement{Copy: "D", Store: r.Store}
	for name, v := range map[string]struct {
		is, known driver.Retirement
		want      int
	}{"as known": {r, r, 0}, "damaged since": {blank, r, 0}, "damaged as ever": {blank, blank, 0}, "mended": {r, blank, 1}} {
		if all := (copies{"D": v.is}).newTo(copies{"D": v.known}); len(all) != v.want {
			t.Errorf("%s: new is %+v", name, all)
		}
	}
}

// Damaged rows of copies are told once as long as they are the same, and what is known of them is their names.
func TestTellsDamagedCopies(t *testing.T) {
	c := newScene(t)
	c.put(driver.TableGuard, driver.RowCopied("C"), []byte("?"))
	told := func() int { return strings.Count(c.log.String(), "never delete them") }
	learn := func() {
		t.Helper()
		if err := c.g.learnCopies(t.Context(), c.store); err != nil {
			t.Fatal(err)
		}
	}
	learn()
	learn()
	id := c.retirement("C", 0).Store
	if got := c.g.witness.snapshot().Copies["C"]; told() != 1 || !strings.Contains(c.log.String(), "rows=copied/C") || got.Store != id || got.To != "" {
		t.Errorf("told %d times, and learnt %+v: %s", told(), got, c.log.String())
	}
	c.put(driver.TableGuard, driver.RowCopied("D"), []byte("?"))
	if learn(); told() != 2 || !strings.Contains(c.log.String(), `rows="copied/C, copied/D"`) {
		t.Errorf("another one: told %d times: %s", told(), c.log.String())
	}
	for _, number := range []string{"C", "D"} {
		c.put(driver.TableGuard, driver.RowCopied(number), driver.EncodeRow(c.retirement(number, 0)))
	}
	if learn(); told() != 2 || c.g.witness.snapshot().Copies["D"].To != "redis://D/0" {
		t.Errorf("mended: told %d times, and known is %+v", told(), c.g.witness.snapshot().Copies)
	}
	if r := (driver.Retirement{Copy: "C", Store: id}); !strings.Contains(r.Err().Error(), "store "+id+" was copied elsewhere: set store to the URL of the copy") || strings.Contains(r.Err().Error(), "0001") || !strings.Contains(retiredCommand(r), "the URL of the copy") {
		t.Errorf("one of which no more is known: %v; %s", r.Err(), retiredCommand(r))
	}
}

// The copies from which a store came are learnt once.
func TestLearnsCopies(t *testing.T) {
	set := func(t *testing.T) (*scene, func(context.Context, store) error) {
		c := newScene(t)
		c.put(driver.TableGuard, driver.RowCopied("C"), driver.EncodeRow(c.retirement("C", 0)))
		return c, c.g.learnCopies
	}
	c, learn := set(t)
	before := c.g.witness.log.syncs.Load()
	for range 2 {
		if err := learn(t.Context(), c.store); err != nil || c.g.witness.log.syncs.Load() != before+1 || len(c.g.witness.snapshot().Copies) != 1 {
			t.Errorf("learnt are %+v with %d writes, %v; want one", c.g.witness.snapshot().Copies, c.g.witness.log.syncs.Load()-before, err)
		}
	}
	synctest.Test(t, func(t *testing.T) { failing(t, set) })
	damaged := func(t *testing.T) (*scene, func(context.Context, store) error) {
		c, learn := set(t)
		c.put(driver.TableGuard, driver.RowCopied("C"), []byte("?")) // the store's identity stands in for it
		return c, learn
	}
	synctest.Test(t, func(t *testing.T) { failing(t, damaged) })
}

// A store that lacks a copy of which the node knows is the one from before, and went to the latest such copy; but
// not where nobody has joined it, nor one with another identity.
func TestMovedOn(t *testing.T) {
	first, second := "C", "D"
	for name, v := range map[string]struct {
		has    []string // rows of copies
		joined bool
		id     string
		want   string // the copy
	}{
		"both copies":      {[]string{first, second}, true, "", ""},
		"the first alone":  {[]string{first}, true, "", second},
		"the second alone": {[]string{second}, true, "", first},
		"none":             {nil, true, "", second},
		"no row":           {nil, false, "", ""},
		"another store":    {nil, true, "other", ""},
	} {
		c := newScene(t)
		r1, r2 := c.retirement(first, 1), c.retirement(second, 2)
		c.knowsCopies(r1, r2)
		for _, number := range v.has {
			c.put(driver.TableGuard, driver.RowCopied(number), driver.EncodeRow(r1))
		}
		if v.joined {
			c.joins(1)
		}
		id := r1.Store
		if v.id != "" {
			id = v.id
		}
		gone, err := c.g.movedOn(t.Context(), c.store, id)
		if err != nil || (gone == nil) != (v.want == "") || gone != nil && gone.Copy != v.want {
			t.Errorf("a store with %s: %+v, %v; want %q", name, gone, err, v.want)
		}
	}
	set := func(t *testing.T) (*scene, func(context.Context, store) error) {
		c := newScene(t)
		c.joins(1)
		c.knowsCopies(c.retirement(first, 1))
		return c, func(ctx context.Context, s store) error { _, err := c.g.hasMoved(ctx, s); return err }
	}
	synctest.Test(t, func(t *testing.T) { failing(t, set) })
	synctest.Test(t, func(t *testing.T) { garbling(t, set) })
	tells := func(t *testing.T) (*scene, func(context.Context, store) error) {
		c := newScene(t)
		r := c.retirement(first, 1)
		c.knowsCopies(r)
		return c, func(ctx context.Context, s store) error { return c.g.tellCopies(ctx, s, r.Store) }
	}
	c, tell := tells(t)
	if err := tell(t.Context(), c.store); err != nil || c.row(driver.TableGuard, driver.RowCopied(first)) != string(driver.EncodeRow(c.retirement(first, 1))) {
		t.Errorf("told is %q, %v", c.row(driver.TableGuard, driver.RowCopied(first)), err)
	}
	synctest.Test(t, func(t *testing.T) { failing(t, tells) })
	// One that stands in the place of that store gets them, too.
	c, _ = tells(t)
	if err := c.g.tellCopies(t.Context(), c.store, "its heir"); err != nil || c.row(driver.TableGuard, driver.RowCopied(first)) == "" {
		t.Errorf("told is %q, %v", c.row(driver.TableGuard, driver.RowCopied(first)), err)
	}
}
