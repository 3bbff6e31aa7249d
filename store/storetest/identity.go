package storetest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/store/driver"
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
	lease := hapax.Lease{Pool: e.name("pool"), Worker: 1, Token: 1, Key: "k", Holder: "h", Grant: hapax.Grant{Lo: 1, Hi: 2}}
	calls := map[string]func() error{
		"StoreID":       func() error { _, err := e.handle.StoreID(ctx); return err },
		"Ping":          func() error { return e.handle.Ping(ctx) },
		"AcquireWorker": func() error { _, err := e.workers.AcquireWorker(ctx, e.request("pool")); return err },
		"ExtendWorker":  func() error { _, err := e.workers.ExtendWorker(ctx, lease, layout, e.extension(10)); return err },
		"SealWorker":    func() error { return e.workers.SealWorker(ctx, lease, 1) },
		"Workers":       func() error { _, err := e.pools.Workers(ctx, e.name("pool")); return err },
		"Pools":         func() error { _, err := e.pools.Pools(ctx); return err },
		"CreatePool":    func() error { _, err := e.pools.CreatePool(ctx, e.name("pool"), layout.String()); return err },
		"DeletePool":    func() error { _, err := e.pools.DeletePool(ctx, e.name("pool")); return err },
		"RetireWorker":  func() error { _, err := e.pools.RetireWorker(ctx, e.name("pool"), 1); return err },
	}
	if e.rows != nil {
		calls["Row"] = func() error { _, err := e.rows.Row(ctx, e.name("table"), "a"); return err }
		calls["ListRows"] = func() error { _, err := e.rows.ListRows(ctx, e.name("table"), "", 10); return err }
		calls["SwapRow"] = func() error { _, err := e.rows.SwapRow(ctx, e.name("table"), "a", nil, []byte("x")); return err }
	}
	if e.guarding != nil {
		p := driver.Pulse{Row: e.name("node"), Was: beat(1), Now: beat(2)}
		a := hapax.Allocation{Grant: hapax.Grant{Lo: 1, Hi: 1}, Tag: hapax.Tag{Name: e.name("t")}, Key: "k", From: 1}
		calls["Beat"] = func() error { _, err := e.guarding.Beat(ctx, p); return err }
		calls["AllocateWith"] = func() error { _, _, err := AllocateWith(ctx, e.guarding, p, e.name("t"), 1, ""); return err }
		calls["HandBackWith"] = func() error { _, err := HandBackWith(ctx, e.guarding, p, a, 1); return err }
		calls["SwapRowWith"] = func() error {
			_, _, err := e.guarding.SwapRowWith(ctx, p, e.name("table"), "a", nil, []byte("x"))
			return err
		}
		calls["HealTag"] = func() error { _, err := e.healing.HealTag(ctx, hapax.Tag{Name: e.name("t")}); return err }
		calls["HealWorker"] = func() error {
			_, err := e.healing.HealWorker(ctx, layout.String(), driver.Worker{Pool: e.name("pool"), ID: 1})
			return err
		}
	}
	if e.store != nil {
		step := int64(7)
		calls["Allocate"] = func() error { _, err := e.store.Allocate(ctx, e.name("t"), 1, ""); return err }
		if !e.h.Capabilities.NoHandBack {
			calls["HandBack"] = func() error {
				return e.store.HandBack(ctx, hapax.Allocation{Grant: hapax.Grant{Lo: 1, Hi: 1}, Tag: hapax.Tag{Name: e.name("t")}, Key: "k", From: 1}, 1)
			}
		}
		calls["CreateTag"] = func() error {
			def, _ := hapax.Tag{Name: e.name("new")}.WithDefaults()
			_, err := e.store.CreateTag(ctx, def, hapax.CreateExplicit)
			return err
		}
		calls["Tag"] = func() error { _, err := e.store.Tag(ctx, e.name("t")); return err }
		calls["Tags"] = func() error { _, err := e.store.Tags(ctx, e.prefix, 10); return err }
		calls["UpdateTag"] = func() error { _, err := e.store.UpdateTag(ctx, e.name("t"), driver.TagUpdate{Step: &step}); return err }
		calls["DeleteTag"] = func() error { _, err := e.store.DeleteTag(ctx, e.name("t")); return err }
	}
	return calls
}

// checkContext: a call whose context has ended fails with ErrStoreUnavailable
// and the context's cause, and changes nothing. StoreID may answer from memory.
func checkContext(e *env) {
	cause := errors.New("the caller has given up")
	ctx, cancel := context.WithCancelCause(e.ctx)
	cancel(cause)
	if e.store != nil {
		e.segment("t", 10)
	}
	for name, call := range e.calls(ctx) {
		err := call()
		if name == "StoreID" && err == nil {
			continue
		}
		if !errors.Is(err, cause) || !errors.Is(err, hapax.ErrStoreUnavailable) {
			e.Errorf("%s with a cancelled context: error is %v; want ErrStoreUnavailable with the context's cause", name, err)
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
		if !errors.Is(err, hapax.ErrClosed) {
			e.Errorf("%s on a closed store: error is %v; want ErrClosed", name, err)
		}
	}
	e.handle.Close()
}

// silentFor is what calls on a silent store may take, long enough to open one.
const silentFor = 2 * time.Second

// checkSilence: where the store says nothing, each call and each opening ends with
// the store's own time-out, long before its context does.
func checkSilence(e *env) { e.silent(e.ctx, silentFor, func() {}) }

// checkHung: where the store says nothing, each call and each opening ends with its
// context, long before the store's own time-out.
func checkHung(e *env) {
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	e.silent(ctx, time.Hour, func() { time.AfterFunc(silentFor, cancel) })
}

// silent silences a store whose calls may take so long, and makes every call.
func (e *env) silent(ctx context.Context, timeout time.Duration, silenced func()) {
	e.Helper()
	open, silence := e.h.Silence(e.TB, timeout)
	// A store that works may still take longer, on a machine that has much else to do.
	e.roles = e.adopted(patience.Await(e.TB, "the store is opened", func() (Handle, error) { return open(e.ctx) }, func(Handle) bool { return true }))
	if e.store != nil {
		def, err := hapax.Tag{Name: e.name("t"), Step: 10}.WithDefaults()
		e.must(err)
		patience.Await(e.TB, "a tag", func() (hapax.Tag, error) { return e.store.CreateTag(e.ctx, def, hapax.CreateFirstUse) }, func(hapax.Tag) bool { return true })
	}
	silence()
	silenced()
	var wg sync.WaitGroup
	for name, call := range e.calls(ctx) {
		wg.Go(func() {
			err := call()
			if name == "StoreID" && err == nil {
				return
			}
			if !errors.Is(err, hapax.ErrStoreUnavailable) {
				e.Errorf("%s on a silent store: error is %v; want ErrStoreUnavailable", name, err)
			}
		})
	}
	wg.Go(func() {
		h, err := open(ctx)
		if err == nil {
			err = h.Ping(ctx)
			h.Close()
		}
		if !errors.Is(err, hapax.ErrStoreUnavailable) {
			e.Errorf("Open of a silent store: error is %v; want ErrStoreUnavailable", err)
		}
	})
	wg.Wait()
	if err := e.ctx.Err(); err != nil {
		e.Errorf("the calls went on until the check's end: %v", err)
	}
}
