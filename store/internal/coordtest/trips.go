package coordtest

import (
	"sync/atomic"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
)

// roundTrips: in the steady state a heartbeat, a grant, a hand-back and those of many tags are one
// request each, as the documents say. Counted are requests that a proxy carries, and not the turns
// that a connection takes: transports have frames of their own.
func (d Driver) roundTrips(t *testing.T) {
	server, url := d.shared(t)
	proxy := testservers.NewProxy(t, server.Addr)
	s := d.open(t, proxy.URL(url)).(interface {
		driver.Store
		driver.Guarding
	})
	ctx, was := t.Context(), driver.Beat{Count: 1}
	for key, value := range map[driver.Key][]byte{
		{Table: driver.TableBeats, Name: "n"}:               was.Encode(),
		{Table: driver.TableGuard, Name: driver.RowJoins}:   driver.EncodeCounter(1),
		{Table: driver.TableGuard, Name: driver.RowChanges}: driver.EncodeCounter(1),
	} {
		if ok, err := s.SwapRow(ctx, key.Table, key.Name, nil, value); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	create(t, s, "a")
	create(t, s, "b")
	pulse := func() driver.Pulse {
		p := driver.Pulse{Row: "n", Was: was, Now: driver.Beat{Count: was.Count + 1}}
		was = p.Now
		return p
	}
	var requests atomic.Int64
	var rest []byte
	proxy.CutRequest(func(chunk []byte) bool {
		rest = append(rest, chunk...)
		for {
			size, request := d.Frame(rest)
			if size == 0 || size > len(rest) {
				return false
			}
			if rest = rest[size:]; request {
				requests.Add(1)
			}
		}
	})
	var held []driver.HandBackOf
	grant := func(tags ...driver.AllocateOf) (driver.Contact, error) {
		made, c, err := s.AllocateAllWith(ctx, pulse(), tags)
		held = nil
		for _, m := range made {
			held = append(held, driver.HandBackOf{Allocation: m.Allocation, Next: m.Grant.Lo})
		}
		return c, err
	}
	for _, call := range []struct {
		what string
		make func() (driver.Contact, error)
	}{
		{"a heartbeat", func() (driver.Contact, error) { return s.Beat(ctx, pulse()) }},
		{"a grant", func() (driver.Contact, error) { return grant(driver.AllocateOf{Tag: "a", N: 10}) }},
		{"two grants", func() (driver.Contact, error) {
			return grant(driver.AllocateOf{Tag: "a", N: 10}, driver.AllocateOf{Tag: "b", N: 10})
		}},
		{"two hand-backs", func() (driver.Contact, error) {
			_, c, err := s.HandBackAllWith(ctx, pulse(), held)
			return c, err
		}},
	} {
		for i := range 5 {
			if call.what == "two hand-backs" && i > 0 {
				break // they were handed back
			}
			before := requests.Load()
			c, err := call.make()
			if err != nil || !c.Met {
				t.Fatalf("%s: %+v, error %v", call.what, c, err)
			}
			learns := call.what == "a heartbeat" && i == 0 // the rows that it looks at
			if n := requests.Load() - before; n != 1 && !learns {
				t.Errorf("%s, made %d times before, is %d requests; want 1", call.what, i, n)
			}
		}
	}
}
