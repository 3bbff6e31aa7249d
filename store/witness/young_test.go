package witness_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// window is the attack with a copy younger than a heartbeat: it is made when the idle node has
// beaten for the last time, another node is granted numbers, the copy is put back under a server
// that was started anew, and the idle node is asked at once, and again until it is granted
// something. It returns what was granted twice. Where the primary's name has no start, nobody
// asks whether anything is missing.
func window(t *testing.T, age time.Duration, started bool) (twice []string) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		a, b, c := f.start("a"), f.start("b"), f.start("c")
		all := []*machine{a, b, c}
		for _, m := range all {
			m.link.setPrimary("server/start 1")
		}
		f.serve(12*time.Second, all...)
		time.Sleep(3 * time.Second)
		last := make(chan struct{}, 1)
		a.link.set(nil, func(op string) error { // a's heartbeat has been made
			if op == "beat" {
				select {
				case last <- struct{}{}:
				default:
				}
			}
			return nil
		})
		<-last
		a.link.set(nil, nil)
		copied := f.store.Snapshot()
		time.Sleep(age / 2)
		for range 10 {
			b.must("t", 10)
		}
		time.Sleep(age - age/2)
		for _, m := range all {
			m.link.cut()
		}
		f.store.Restore(copied)
		for _, m := range all {
			if started {
				m.link.setPrimary("server/start 2")
			}
			m.link.restore()
		}
		for range 3 {
			a.within(20 * time.Second)
		}
		for _, m := range all {
			m.within(20 * time.Second)
		}
		twice = f.twice
	})
	return twice
}

// A copy that is younger than the last heartbeat of the node that is granted something next.
func TestCopyYoungerThanAHeartbeat(t *testing.T) {
	unseen := 0
	for age := time.Duration(0); age <= time.Second; age += 100 * time.Millisecond {
		for _, twice := range window(t, age, true) {
			t.Errorf("a copy of %v: twice: %s", age, twice)
		}
		unseen += len(window(t, age, false))
	}
	if unseen == 0 {
		t.Error("the attack finds nothing where the primary's name has no start")
	}
}

// overtake has a be granted numbers by a call that a later heartbeat overtakes, and returns a
// copy of the store from between: it has the heartbeat, and lacks the grant.
func (f *fleet) overtake(a *machine) *memstore.Store {
	f.t.Helper()
	overtaken := make(chan struct{})
	a.link.set(func(op string) error {
		if op == "allocate" {
			<-overtaken
		}
		return nil
	}, nil)
	granted := make(chan error, 1)
	go func() { granted <- a.take("t", 5000) }()
	time.Sleep(1200 * time.Millisecond) // and a heartbeat
	copied := f.store.Snapshot()
	a.link.set(nil, nil)
	close(overtaken)
	if err := <-granted; err != nil {
		f.t.Fatal(err)
	}
	return copied
}

// The node that was granted what a copy lacks finds that out by the line, and another that asks
// is granted nothing before it has: its heartbeat comes sooner.
func TestCopyWithoutAnOvertakenGrant(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		all := []*machine{a, b}
		for _, m := range all {
			m.link.setPrimary("p1")
		}
		f.serve(12*time.Second, all...)
		time.Sleep(2 * time.Second)
		copied := f.overtake(a)
		a.link.set(func(op string) error {
			if op == "named" {
				time.Sleep(3 * time.Second)
			}
			return nil
		}, nil)
		f.store.Restore(copied)
		for _, m := range all {
			m.link.setPrimary("p2")
		}
		b.within(20 * time.Second)
		a.link.set(nil, nil)
		a.within(20 * time.Second)
	})
}

// The next primary has acknowledged a heartbeat that was sent before the change was noticed: the
// grant that it lacks is compared nevertheless.
func TestHeartbeatOfTheNextPrimary(t *testing.T) {
	for range 10 { // what else finds the loss, and when, is up to the order of goroutines
		heartbeatOfTheNextPrimary(t)
	}
}

func heartbeatOfTheNextPrimary(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		all := []*machine{a, b}
		for _, m := range all {
			m.link.setPrimary("p1")
		}
		f.serve(12*time.Second, all...)
		time.Sleep(2 * time.Second)
		copied := f.overtake(a)
		sent, noticed := make(chan struct{}), make(chan struct{})
		var held atomic.Bool
		var until atomic.Int64 // no tags are compared before
		a.link.set(func(op string) error {
			switch {
			case op == "beat" && held.CompareAndSwap(false, true):
				close(sent)
				<-noticed
			case op == "named" && held.Load() && time.Now().UnixNano() < until.Load():
				return errDown
			}
			return nil
		}, nil)
		<-sent
		f.store.Restore(copied)
		for _, m := range all {
			m.link.setPrimary("p2")
		}
		if err := a.take("t", 10); err == nil {
			t.Error("the next primary grants before the question is over")
		}
		until.Store(time.Now().Add(3 * time.Second).UnixNano()) // sooner than b would wait for nobody
		close(noticed)
		b.within(20 * time.Second)
		a.within(20 * time.Second)
	})
}

// The primary before has granted numbers, and the answer is read when the question about the
// next one, which lacks them, is over.
func TestAnswerOfThePrimaryBefore(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a, b := f.start("a"), f.start("b")
		all := []*machine{a, b}
		for _, m := range all {
			m.link.setPrimary("p1")
		}
		f.serve(12*time.Second, all...)
		time.Sleep(2 * time.Second)
		over := make(chan struct{})
		a.link.set(nil, func(op string) error {
			if op == "allocate" {
				<-over
			}
			return nil
		})
		a.opts.Timeout = time.Minute
		copied := f.store.Snapshot()
		answered := make(chan error, 1)
		go func() { answered <- a.take("t", 5000) }()
		time.Sleep(10 * time.Millisecond)
		f.store.Restore(copied) // and all heartbeats are there
		for _, m := range all {
			m.link.setPrimary("p2")
		}
		a.await(witness.Joining)
		a.await(witness.Serving)
		b.await(witness.Serving)
		a.link.set(nil, nil)
		close(over)
		if err := <-answered; err == nil {
			t.Error("the answer is used")
		}
		b.within(20 * time.Second)
		a.within(20 * time.Second)
	})
}

// await waits for a state.
func (m *machine) await(state witness.State) {
	m.f.t.Helper()
	for range 10_000 {
		if m.Status().State == state {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	m.f.t.Fatalf("%s is %+v; want %s", m.name, m.Status(), state)
}

// A driver has found that the store is not the one it was, and dials anew. What answers then is
// a copy that lacks the node's last heartbeats: it finds that out by the row that it had, though
// it was granted nothing since the copy was made, and does not close it as left.
func TestJoinsAnewOnAnOlderCopy(t *testing.T) {
	world(t, func(t *testing.T, f *fleet) {
		a := f.start("a")
		a.within(12 * time.Second)
		time.Sleep(2 * time.Second)
		copied := f.store.Snapshot()
		time.Sleep(3 * time.Second)
		a.link.set(func(op string) error {
			if op == "beat" {
				return errReplaced
			}
			return nil
		}, nil)
		a.await(witness.Joining)
		f.store.Restore(copied)
		a.link.set(nil, nil)
		a.await(witness.Refusing)
		a.within(20 * time.Second)
	})
}

var errReplaced = fmt.Errorf("%w: its ID is gone", hapax.ErrStoreReplaced)
