package coord

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax/store/driver"
)

func beatOf(n int64) []byte { return driver.Beat{Count: n, Grants: n}.Encode() }

func countOf(t *testing.T, beat []byte) int64 {
	b, _, err := driver.DecodeBeat("row", beat)
	if err != nil {
		t.Error(err)
	}
	return b.Count
}

// Those that wait while a call leads share the beat of the next one, and follow it
// together.
func TestConvoy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Convoy
		type joined struct {
			call  int64
			now   int64
			leads bool
			ended func(bool)
		}
		joins := make(chan joined, 10)
		join := func(n int64) {
			go func() {
				beat, leads, ended, err := c.Join(t.Context(), "row", beatOf(n))
				if err != nil {
					t.Error(err)
				}
				joins <- joined{n, countOf(t, beat), leads, ended}
			}()
			synctest.Wait()
		}
		join(2)
		first := <-joins
		if !first.leads || first.now != 2 {
			t.Fatalf("a call that is alone: %+v", first)
		}
		for n := int64(3); n <= 5; n++ {
			join(n)
		}
		if len(joins) > 0 {
			t.Fatalf("%+v goes on while another one leads", <-joins)
		}
		first.ended(true)
		synctest.Wait()
		second := <-joins
		if !second.leads || second.now != 5 || len(joins) > 0 {
			t.Fatalf("the next one: %+v, and %d others", second, len(joins))
		}
		second.ended(true)
		synctest.Wait()
		for range 2 {
			if j := <-joins; j.leads || j.now != j.call {
				t.Errorf("%+v; want it to follow with its own beat", j)
			}
		}
		join(6)
		if j := <-joins; !j.leads {
			t.Errorf("%+v; want it to lead, since its beat is not made", j)
		} else {
			join(7)
			j.ended(false) // it has not met the store
			synctest.Wait()
		}
		if j := <-joins; !j.leads || j.now != 7 {
			t.Errorf("after one that failed: %+v", j)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, _, err := c.Join(ctx, "row", beatOf(8)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while another one leads for long: %v", err)
		}
	})
}

// Another row of the process has a convoy of its own.
func TestConvoyOfAnotherRow(t *testing.T) {
	var c Convoy
	_, _, ended, err := c.Join(t.Context(), "row", beatOf(9))
	if err != nil {
		t.Fatal(err)
	}
	ended(true)
	if beat, leads, _, err := c.Join(t.Context(), "another", beatOf(2)); err != nil || !leads || countOf(t, beat) != 2 {
		t.Errorf("beat %s, leads: %v, %v", beat, leads, err)
	}
}

// Where that would disturb those who follow, nobody leads while they do.
func TestConvoyThatLeadsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Convoy{Alone: true}
		_, _, ended, err := c.Join(t.Context(), "row", beatOf(5))
		if err != nil {
			t.Fatal(err)
		}
		ended(true)
		_, leads, ended, err := c.Join(t.Context(), "row", beatOf(4))
		if err != nil || leads {
			t.Fatalf("leads: %v, %v", leads, err)
		}
		led := make(chan bool, 1)
		go func() {
			_, leads, _, _ := c.Join(t.Context(), "row", beatOf(6))
			led <- leads
		}()
		synctest.Wait()
		if len(led) > 0 {
			t.Error("a call goes on while another one follows")
		}
		ended(true)
		if !<-led {
			t.Error("the call does not lead")
		}
	})
}

// Whoever calls again and again without a beat that is made, as under a fence, lets those
// lead who wait.
func TestConvoyInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Convoy
		join := func(n int64) func(bool) {
			_, leads, ended, err := c.Join(t.Context(), "row", beatOf(n))
			if err != nil || !leads {
				t.Errorf("beat %d leads: %t, error %v", n, leads, err)
				return func(bool) {}
			}
			return ended
		}
		for range 1000 {
			ended := join(2)
			order := make(chan int64, 3)
			for n := int64(3); n <= 5; n++ {
				go func() {
					ended := join(n)
					order <- n
					ended(false)
				}()
				synctest.Wait()
			}
			ended(false)
			ended = join(6)
			for want := int64(3); want <= 5; want++ {
				select {
				case got := <-order:
					if got != want {
						t.Fatalf("beat %d is the next; want %d", got, want)
					}
				default:
					t.Fatalf("the call that came last leads before beat %d", want)
				}
			}
			ended(false)
		}
	})
}
