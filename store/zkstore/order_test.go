package zkstore_test

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
)

// TestRoundTrips: how many requests calls are on the way of a process to its first number, and that those
// which are one round trip have sent all of them before anything is answered.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	server := testservers.SharedZooKeeper(t)
	server.MustProxy()
	proxy, url := testservers.NewProxy(t, server.Addr), server.URL+"/"+rand.Text()
	s, another := open(t, proxy.URL(url)), open(t, url)
	ctx, beat := t.Context(), driver.Beat{Count: 1}
	row := func(table, name string) driver.Key { return driver.Key{Table: table, Name: name} }
	joins, fence := row(driver.TableGuard, driver.RowJoins), row(driver.TableFence, driver.RowFence)
	pulse := func() driver.Pulse {
		was := beat
		beat.Count++
		return driver.Pulse{Row: "a", Was: was, Now: beat}
	}
	failed := errors.New("the call has another result")
	for _, call := range []struct {
		what     string
		requests int64
		together bool // in one round trip
		make     func() (bool, error)
	}{
		{"rows are read, after a sync", 1 + 2, true, func() (bool, error) {
			values, err := s.RowsNamed(ctx, joins, fence)
			return err == nil && values[0] == nil, err
		}},
		{"the first process registers", 1, true, func() (bool, error) {
			return s.SwapRows(ctx,
				driver.Swap{Key: row(driver.TableNodes, "a"), Next: []byte("{}")}, driver.Swap{Key: row(driver.TableBeats, "a"), Next: beat.Encode()},
				driver.Swap{Key: joins, Next: driver.EncodeCounter(1)}, driver.Swap{Key: fence})
		}},
		{"it beats, and reads how many have ended, which none has", 2, true, func() (bool, error) {
			c, err := s.Beat(ctx, pulse())
			return c.Met && c.Joins == 1 && c.Changes == 0, err
		}},
		{"it lists rows, and reads them", 2 + 1, false, func() (bool, error) {
			rows, err := s.ListRows(ctx, driver.TableBeats, "", 10)
			return len(rows) == 1, err
		}},
		{"it does so again", 2 + 1, true, func() (bool, error) {
			rows, err := s.ListRows(ctx, driver.TableBeats, "", 10)
			return len(rows) == 1 && string(rows[0].Value) == string(beat.Encode()), err
		}},
		{"it beats after another has joined", 2 + 3, false, func() (bool, error) { // refused; then both counters are read
			joined, err := another.SwapRows(ctx,
				driver.Swap{Key: row(driver.TableBeats, "b"), Next: beat.Encode()}, driver.Swap{Key: joins, Old: driver.EncodeCounter(1), Next: driver.EncodeCounter(2)})
			if err != nil || !joined {
				return false, err
			}
			c, err := s.Beat(ctx, pulse())
			return c.Met && c.Joins == 2, err
		}},
		{"it reads the counter", 1 + 1, true, func() (bool, error) {
			values, err := s.RowsNamed(ctx, joins)
			return err == nil && string(values[0]) == string(driver.EncodeCounter(2)), err
		}},
		{"it registers anew", 1, true, func() (bool, error) {
			return s.SwapRows(ctx, driver.Swap{Key: row(driver.TableBeats, "c"), Next: beat.Encode()}, driver.Swap{Key: joins, Old: driver.EncodeCounter(2), Next: driver.EncodeCounter(3)})
		}},
		{"it makes the first row of a table, and the nodes above", 1 + 2 + 1, false, func() (bool, error) {
			return s.SwapRow(ctx, "new", "row", nil, []byte("x"))
		}},
		{"it lists rows, of which two have come", 3 + 2, false, func() (bool, error) {
			rows, err := s.ListRows(ctx, driver.TableBeats, "", 10)
			return len(rows) == 3 && rows[0].Name == "a" && rows[2].Name == "c", err
		}},
		{"rows are read, after calls that were given up", 1 + 2, true, func() (bool, error) {
			_, err := s.RowsNamed(ctx, joins, fence)
			return err == nil, err
		}},
	} {
		if strings.HasSuffix(call.what, "given up") { // some of them while their requests were on the way to the connection
			sent := func() int64 {
				before, _ := proxy.Carried()
				if _, err := s.RowsNamed(ctx, joins, fence); err != nil {
					t.Fatal(err)
				}
				after, _ := proxy.Carried()
				return after - before
			}
			for i := range 300 {
				soon, cancel := context.WithTimeout(ctx, time.Duration(i)*time.Microsecond)
				_, _ = s.RowsNamed(soon, joins, fence)
				cancel()
			}
			patience.Until(t, "none of them is on the way", func() bool {
				first, second, third := sent(), sent(), sent()
				return first == second && second == third
			})
		}
		var requests atomic.Int64
		var rest []byte
		proxy.CutRequest(func(chunk []byte) bool {
			for rest = append(rest, chunk...); ; {
				size, request := suite.Frame(rest)
				if size == 0 || size > len(rest) {
					return false
				}
				if rest = rest[size:]; request {
					requests.Add(1)
				}
			}
		})
		if call.together {
			proxy.Delay(0, time.Hour)
		}
		over := make(chan error, 1)
		go func() {
			ok, err := call.make()
			if err == nil && !ok {
				err = failed
			}
			over <- err
		}()
		if call.together {
			patience.Until(t, call.what+": all requests", func() bool { return requests.Load() == call.requests })
			proxy.Delay(0, 0)
		}
		if err := patience.Receive(t, call.what, over); err != nil {
			t.Fatalf("%s: %v", call.what, err)
		}
		if n := requests.Load(); n != call.requests {
			t.Errorf("%s: %d requests; want %d", call.what, n, call.requests)
		}
	}
}
