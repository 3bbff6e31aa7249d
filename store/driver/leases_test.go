package driver_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/storetest"
)

// A pool that is deleted, and created with another layout, while a worker of it is
// acquired, is not served with the layout that it had: the same number would mean
// another worker and another time. The worker ID is as good as any for the pool that is there now, in
// whose ticks the mark would lie in another age.
func TestPoolMadeAnewWhileAcquiring(t *testing.T) {
	const other = "time:31,worker:10,sequence:22,unit=1s,epoch=1970-01-01T00:00:00Z"
	store := memstore.New()
	link := storetest.NewFaults(store)
	once := sync.OnceFunc(func() {
		_, err := store.DeletePool(t.Context(), "p")
		if err == nil {
			_, err = store.CreatePool(t.Context(), "p", other)
		}
		if err != nil {
			t.Error(err)
		}
	})
	link.Inject(func(op storetest.Op) storetest.Fault {
		if op.Method == "SwapRow" && strings.HasPrefix(op.Line, "workers") {
			once()
		}
		return storetest.Fault{}
	})
	layout, err := hapax.ParseLayout("time:41,worker:10,sequence:12,epoch=0s")
	if err != nil {
		t.Fatal(err)
	}
	req := hapax.AcquireRequest{
		Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Lo: 3, Hi: 4}, Holder: "me",
		Term: hapax.Term{Now: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC), Length: 100 * time.Millisecond, TTL: time.Hour},
	}
	lease, err := driver.LeasesIn(link).AcquireWorker(t.Context(), req)
	if !errors.Is(err, hapax.ErrLayoutMismatch) {
		t.Errorf("acquired %+v, error %v; want ErrLayoutMismatch", lease, err)
	}
	if req.Layout, err = hapax.ParseLayout(other); err != nil {
		t.Fatal(err)
	}
	req.Holder = "another"
	if lease, err = store.AcquireWorker(t.Context(), req); err != nil || lease.Grant.Lo != req.Term.Now.Unix() || lease.Token < 2 {
		t.Errorf("with the other layout: %+v, error %v", lease, err)
	}
}

// A worker's row that an earlier version wrote, with the node that granted, is read,
// extended and sealed; the node is dropped.
func TestRowWithNode(t *testing.T) {
	ctx, store := t.Context(), memstore.New()
	layout, err := hapax.ParseLayout("time:41,worker:10,sequence:12,epoch=0s")
	if err != nil {
		t.Fatal(err)
	}
	term := hapax.Term{Now: time.UnixMilli(0), Length: 100 * time.Millisecond, TTL: time.Hour}
	lease, err := store.AcquireWorker(ctx, hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Lo: 0, Hi: 4}, Holder: "me", Term: term})
	if err != nil {
		t.Fatal(err)
	}
	row := func() string {
		raw, err := store.Row(ctx, "workers/p", "0000000000000000000")
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	old := strings.TrimSuffix(row(), "}") + `,"node":"first"}`
	if ok, err := store.SwapRow(ctx, "workers/p", "0000000000000000000", []byte(row()), []byte(old)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if w, err := store.Workers(ctx, "p"); err != nil || len(w) != 1 || w[0].Mark != lease.Grant.Hi {
		t.Fatalf("the workers are %+v, error %v", w, err)
	}
	term.Now = term.Now.Add(50 * time.Millisecond)
	if lease, err = store.ExtendWorker(ctx, lease, layout, term); err != nil {
		t.Fatal(err)
	}
	if after := row(); strings.Contains(after, "node") {
		t.Errorf("the row is %s; want it without the node", after)
	}
	if err := store.SealWorker(ctx, lease, lease.From); err != nil {
		t.Error(err)
	}
}

// A worker's token that somebody has edited must not overflow with the next start.
func TestWorkerTokenTooHigh(t *testing.T) {
	ctx, store := t.Context(), memstore.New()
	layout, err := hapax.ParseLayout("time:41,worker:10,sequence:12,epoch=0s")
	if err != nil {
		t.Fatal(err)
	}
	req := hapax.AcquireRequest{
		Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Lo: 0, Hi: 1}, Holder: "me",
		Term: hapax.Term{Now: time.UnixMilli(0), Length: 100 * time.Millisecond, TTL: time.Hour},
	}
	if _, err := store.AcquireWorker(ctx, req); err != nil {
		t.Fatal(err)
	}
	const name = "0000000000000000000"
	raw, err := store.Row(ctx, "workers/p", name)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.Replace(string(raw), `"token":1`, `"token":9223372036854775807`, 1)
	if ok, err := store.SwapRow(ctx, "workers/p", name, raw, []byte(edited)); !ok || err != nil || edited == string(raw) {
		t.Fatalf("the row %s was not edited: %v", raw, err)
	}
	req.Term.Now = req.Term.Now.Add(2 * time.Hour)
	if lease, err := store.AcquireWorker(ctx, req); !errors.Is(err, hapax.ErrStoreCorrupt) {
		t.Errorf("the next holder has %+v, error %v; want ErrStoreCorrupt", lease, err)
	}
}
