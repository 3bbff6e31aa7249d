package storetest

import (
	"fmt"
	"math/rand/v2"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// checkModel runs random calls against the store and against a map, which must
// agree on every answer and on every error's code.
func checkModel(e *env) {
	seed := rand.Uint64()
	e.Logf("seed %d", seed)
	r := &modelRun{env: e, rnd: rand.New(rand.NewPCG(seed, 0)), model: model{}, got: map[string]hapax.Allocation{}, want: map[string]hapax.Allocation{}}
	for range 400 {
		r.step(e.name(string(rune('a' + r.rnd.IntN(3)))))
	}
}

// A modelRun is a store and its model on the way. Their keys differ, so that
// each has its own last allocation of a tag.
type modelRun struct {
	*env
	rnd       *rand.Rand
	model     model
	got, want map[string]hapax.Allocation
}

// maybe returns a number below the bound, or nil.
func (r *modelRun) maybe(bound int64) *int64 {
	if r.rnd.IntN(2) == 0 {
		return nil
	}
	v := r.rnd.Int64N(bound)
	return &v
}

// step makes one call on both.
func (r *modelRun) step(name string) {
	var got, want hapax.Tag
	var gotErr, wantErr error
	var call string
	switch op := r.rnd.IntN(13); {
	case op < 4:
		got, want, gotErr, wantErr = r.allocate(name, r.rnd.Int64N(30)-1)
		call = "Allocate"
	case op < 6:
		if !r.h.Capabilities.NoHandBack {
			r.handBack(name)
		}
		return
	case op < 8:
		def := hapax.Tag{Name: name, Start: r.rnd.Int64N(1000), Step: r.rnd.Int64N(20), Extra: fmt.Sprint(r.rnd.IntN(3))}
		switch r.rnd.IntN(4) {
		case 0:
			def = hapax.Tag{Name: name, Kind: hapax.KindSnowflake}
		case 1:
			def.Delta = 3
		}
		def, err := def.WithDefaults()
		r.must(err)
		mode := hapax.CreateMode(r.rnd.IntN(4))
		def.Token = r.model[name].Token - r.rnd.Int64N(2) // read just now, or before its last change
		call = "CreateTag"
		got, gotErr = r.store.CreateTag(r.ctx, def, mode)
		want, wantErr = r.model.create(def, mode)
	case op < 10:
		u := driver.TagUpdate{Step: r.maybe(30), MinStep: r.maybe(20), MaxStep: r.maybe(2_000_000), Floor: r.maybe(r.model[name].Mark + 100)}
		if r.rnd.IntN(2) == 0 {
			extra := fmt.Sprint(r.rnd.IntN(3))
			u.Extra = &extra
		}
		call = "UpdateTag"
		got, gotErr = r.store.UpdateTag(r.ctx, name, u)
		floor := int64(0)
		if u.Floor != nil {
			floor = *u.Floor
		}
		want, wantErr = r.model.redefine(name, floor, func(t hapax.Tag) (hapax.Tag, error) { return driver.Update(t, u) })
	case op < 11:
		call = "DeleteTag"
		got, gotErr = r.store.DeleteTag(r.ctx, name)
		want, wantErr = r.model.redefine(name, 0, driver.Delete)
	case op < 12:
		def := hapax.Tag{Name: name, Mark: r.rnd.Int64N(r.model[name].Mark + 50), Token: r.rnd.Int64N(r.model[name].Token + 3), Deleted: r.rnd.IntN(4) == 0}
		if was := r.model[name]; was.Kind == hapax.KindSegment && r.rnd.IntN(4) > 0 {
			def.Delta = was.Delta
		}
		if r.healing == nil {
			return
		}
		call = "HealTag"
		got, gotErr = r.healing.HealTag(r.ctx, def)
		want, wantErr = r.model.heal(def)
	default:
		call = "Tag"
		got, gotErr = r.store.Tag(r.ctx, name)
		want, wantErr = r.model.redefine(name, 0, func(t hapax.Tag) (hapax.Tag, error) { return t, nil })
	}
	if hapax.CodeOf(gotErr) != hapax.CodeOf(wantErr) {
		r.Fatalf("%s: error is %v; want %v", call, gotErr, wantErr)
	}
	if wantErr == nil && comparableTag(got) != comparableTag(want) {
		r.Fatalf("%s returned %+v; want %+v", call, got, want)
	}
}

// allocate takes numbers from both, sometimes with the key of the last time.
func (r *modelRun) allocate(name string, n int64) (got, want hapax.Tag, gotErr, wantErr error) {
	var keys [2]hapax.GrantKey
	if r.rnd.IntN(2) == 0 {
		keys = [2]hapax.GrantKey{r.got[name].Key, r.want[name].Key}
	}
	a, gotErr := r.store.Allocate(r.ctx, name, n, keys[0])
	b, wantErr := r.model.allocate(name, n, keys[1])
	equal(r.env, "the grant", a.Grant, b.Grant)
	if !r.h.Capabilities.NoHandBack {
		equal(r.env, "where the run began", a.From, b.From)
	}
	if gotErr == nil && (r.rnd.IntN(3) > 0 || r.got[name].Key == "") { // keep an old one now and then
		r.got[name], r.want[name] = a, b
	}
	return a.Tag, b.Tag, gotErr, wantErr
}

// handBack hands back what was allocated last, or earlier.
func (r *modelRun) handBack(name string) {
	a, b := r.got[name], r.want[name]
	if a.Key == "" {
		return
	}
	next := a.Grant.Hi - r.rnd.Int64N(max(1, min(a.Grant.Hi, 2*(a.Grant.Hi-a.From)+2)))
	gotErr := r.store.HandBack(r.ctx, a, next)
	wantErr := r.model.change(name, func(t driver.Tag) (driver.Tag, error) { return driver.HandBack(t, b, next) })
	if (gotErr == nil) != (wantErr == nil) {
		r.Fatalf("HandBack of [%d, %d) from %d on: error is %v; want %v", a.From, a.Grant.Hi, next, gotErr, wantErr)
	}
	if gotErr != nil {
		r.wantRefusedHandBack("HandBack", gotErr)
	}
}

// comparableTag drops what does not matter in a tombstone.
func comparableTag(t hapax.Tag) hapax.Tag {
	if t.Deleted {
		t.Start, t.Step, t.MinStep, t.MaxStep, t.Delta, t.Remainder, t.Extra = 0, 0, 0, 0, 0, 0, ""
	}
	return t
}

// model is what a store's tags should be.
type model map[string]driver.Tag

func (m model) change(name string, f func(driver.Tag) (driver.Tag, error)) error {
	t, ok := m[name]
	if !ok {
		return hapax.ErrTagNotFound
	}
	t, err := f(t)
	if err == nil {
		m[name] = t
	}
	return err
}

func (m model) redefine(name string, floor int64, f func(hapax.Tag) (hapax.Tag, error)) (hapax.Tag, error) {
	err := m.change(name, func(t driver.Tag) (driver.Tag, error) {
		defined, err := f(t.Tag)
		return t.Redefined(defined).Floored(floor), err
	})
	return m[name].Tag, err
}

func (m model) allocate(name string, n int64, last hapax.GrantKey) (a hapax.Allocation, err error) {
	err = m.change(name, func(t driver.Tag) (next driver.Tag, err error) {
		a, next, err = driver.Advance(t, n, last)
		return next, err
	})
	return a, err
}

func (m model) create(def hapax.Tag, mode hapax.CreateMode) (hapax.Tag, error) {
	t, err := driver.Create(m[def.Name], def, mode)
	if err == nil {
		m[def.Name] = t
	}
	return t.Tag, err
}

func (m model) heal(def hapax.Tag) (hapax.Tag, error) {
	healed, err := driver.Heal(m[def.Name], def)
	if err == nil {
		m[def.Name] = healed
	}
	return healed.Tag, err
}
