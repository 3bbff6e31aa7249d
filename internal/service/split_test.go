package service

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

type splitStore struct{ *memstore.Store }

func (splitStore) Split() bool { return true }

// A server says of its store when a step there is several writes.
func TestStatusTellsOfSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := func(store driver.Store) bool {
			t.Helper()
			g, err := witness.Guard(store, openWitness(t), witness.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = g.Close() }) // after the service
			s := open(t, g, Options{})
			time.Sleep(time.Minute) // until it has joined
			mustNext(t, s, "orders")
			return s.Status(t.Context()).Split
		}
		if !told(splitStore{memstore.New()}) {
			t.Error("a store whose steps are several writes is shown as one whose steps are one")
		}
		if told(memstore.New()) {
			t.Error("a store whose steps are one is shown as one whose steps are several writes")
		}
	})
}
