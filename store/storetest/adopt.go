package storetest

import (
	"errors"

	"github.com/hapax-id/hapax"
)

// checkAdopt expects what adopt means in every driver that can tell its store from
// another: until then every open is refused for good, and changes nothing; then every
// open works, by the same store ID, and no number that was granted is granted again.
func checkAdopt(e *env) {
	s := e.h.Estrange(e.TB)
	open := func(when string) (roles, error) {
		h, err := s.Open(e.ctx)
		if err != nil {
			return roles{}, err
		}
		if h == nil {
			e.Fatalf("open %s: neither a handle nor an error", when)
		}
		return e.adopted(h), nil
	}
	first, err := open("at first")
	e.must(err)
	id, err := first.handle.StoreID(e.ctx)
	e.must(err)
	def, err := hapax.Tag{Name: e.name("t"), Step: 7}.WithDefaults()
	e.must(err)
	_, err = first.store.CreateTag(e.ctx, def, hapax.CreateExplicit)
	e.must(err)
	before, err := first.store.Allocate(e.ctx, def.Name, 7, "")
	e.must(err)
	e.must(first.handle.Close())

	s.Estrange()
	for range 2 { // the first refusal accepts nothing by the way
		_, err := open("of what is not the store any more")
		if !errors.Is(err, hapax.ErrStoreCopied) && !errors.Is(err, hapax.ErrStoreReplaced) && !errors.Is(err, hapax.ErrStoreUnsafe) {
			e.Fatalf("open of what is not the store any more: error is %v; want ErrStoreCopied, ErrStoreReplaced or ErrStoreUnsafe", err)
		}
		if hapax.IsTransient(err) {
			e.Errorf("the refusal %v counts as transient", err)
		}
	}

	e.must(s.Adopt(e.ctx))
	last := before.Grant
	for range 2 { // adopted once, and for every handle after that
		r, err := open("of the adopted store")
		e.must(err)
		got, err := r.handle.StoreID(e.ctx)
		e.must(err)
		equal(e, "the store ID after adopt", got, id)
		a, err := r.store.Allocate(e.ctx, def.Name, 7, "")
		e.must(err)
		if a.Grant.Lo < last.Hi {
			e.Errorf("the grant after %v is %v", last, a.Grant)
		}
		last = a.Grant
		e.must(r.handle.Close())
	}
}
