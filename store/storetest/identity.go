package storetest

import (
	"context"
	"errors"

	"github.com/hapax-id/hapax"
)

var identityChecks = []check{
	{"identity/store ID", always, checkStoreID},
	{"identity/store ID of the next handle", durable, checkStoreIDStays},
	{"identity/context", always, checkContext},
	{"identity/closed", always, checkClosed},
}

func (e *env) storeID() string {
	e.Helper()
	id, err := e.handle.StoreID(e.ctx)
	e.must(err)
	return id
}

func checkStoreID(e *env) {
	id := e.storeID()
	if err := hapax.ValidateName("store ID", id); err != nil {
		e.Error(err)
	}
	equal(e, "the store ID when asked again", e.storeID(), id)
	e.must(e.handle.Ping(e.ctx))
}

func checkStoreIDStays(e *env) {
	id := e.storeID()
	e.reopen()
	equal(e, "the store ID of the next handle", e.storeID(), id)
	if e.h.Capabilities.Shared {
		other := e.open()
		got, err := other.handle.StoreID(e.ctx)
		e.must(err)
		equal(e, "the store ID of another handle", got, id)
	}
}

// calls returns one call of every method. What they change does not matter.
func (e *env) calls(ctx context.Context) map[string]func() error {
	lease := hapax.Lease{Pool: e.name("pool"), Worker: 1, Epoch: 1, Holder: "h", Grant: hapax.Grant{Lo: 1, Hi: 2}}
	calls := map[string]func() error{
		"StoreID":       func() error { _, err := e.handle.StoreID(ctx); return err },
		"Ping":          func() error { return e.handle.Ping(ctx) },
		"AcquireWorker": func() error { _, err := e.workers.AcquireWorker(ctx, e.request("pool")); return err },
		"ExtendWorker":  func() error { _, err := e.workers.ExtendWorker(ctx, lease, e.extension(10)); return err },
		"SealWorker":    func() error { return e.workers.SealWorker(ctx, lease, 1) },
		"Workers":       func() error { _, err := e.workers.Workers(ctx, e.name("pool")); return err },
		"Pools":         func() error { _, err := e.workers.Pools(ctx); return err },
	}
	if e.table != nil {
		calls["FreezePool"] = func() error { _, err := e.table.FreezePool(ctx, e.name("pool"), "a"); return err }
		calls["Worker"] = func() error { _, err := e.table.Worker(ctx, e.name("pool"), 1); return err }
		calls["SwapWorker"] = func() error {
			_, err := e.table.SwapWorker(ctx, hapax.Worker{}, hapax.Worker{Pool: e.name("pool"), ID: 1, Epoch: 1})
			return err
		}
	}
	if e.store != nil {
		step := int64(7)
		calls["Allocate"] = func() error { _, err := e.store.Allocate(ctx, e.name("t"), 1); return err }
		calls["CreateTag"] = func() error {
			def, _ := hapax.Tag{Name: e.name("new")}.WithDefaults()
			_, err := e.store.CreateTag(ctx, def, hapax.CreateExplicit)
			return err
		}
		calls["Tag"] = func() error { _, err := e.store.Tag(ctx, e.name("t")); return err }
		calls["Tags"] = func() error { _, err := e.store.Tags(ctx, e.prefix, 10); return err }
		calls["UpdateTag"] = func() error { _, err := e.store.UpdateTag(ctx, e.name("t"), hapax.TagUpdate{Step: &step}); return err }
		calls["DeleteTag"] = func() error { _, err := e.store.DeleteTag(ctx, e.name("t")); return err }
	}
	return calls
}

// checkContext: a call whose context has ended fails with the context's error
// and changes nothing. StoreID may answer from memory.
func checkContext(e *env) {
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	if e.store != nil {
		e.segment("t", 10)
	}
	for name, call := range e.calls(ctx) {
		err := call()
		if name == "StoreID" && err == nil {
			continue
		}
		if !errors.Is(err, context.Canceled) {
			e.Errorf("%s with a cancelled context: error is %v; want context.Canceled", name, err)
		}
	}
	if e.store != nil {
		equal(e, "the mark after calls that were cancelled before", e.tag(e.name("t")).Mark, 1)
	}
}

// checkClosed: calls on a closed handle fail, and closing it again does no harm.
func checkClosed(e *env) {
	if e.store != nil {
		e.segment("t", 10)
	}
	e.must(e.handle.Close())
	for name, call := range e.calls(e.ctx) {
		err := call()
		if name == "StoreID" && err == nil {
			continue
		}
		if !errors.Is(err, hapax.ErrStoreUnavailable) && !errors.Is(err, hapax.ErrClosed) {
			e.Errorf("%s on a closed store: error is %v; want ErrStoreUnavailable or ErrClosed", name, err)
		}
	}
	e.handle.Close()
}
