package gate

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// A stranger who comes where there is no place displaces the one that has been silent for
// longest, once that has had its time.
func TestStrangersDisplaceEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(800) // 100 of them for strangers
		cut := make([]int, 240)
		known := g.Enter(func() { t.Error("a known connection was cut") })
		known.Vouch()
		began := time.Now()
		for i := range cut {
			if g.Enter(func() { cut[i]++ }) == nil {
				t.Fatalf("stranger %d found no place", i)
			}
		}
		for i, n := range cut {
			if want := i < 140; want != (n == 1) || n > 1 {
				t.Errorf("stranger %d was cut %d times", i, n)
			}
		}
		if g.Len() != 101 {
			t.Errorf("%d have places", g.Len())
		}
		if waited := time.Since(began); waited < 2*silentGrace || waited > 2*silentGrace+2*judgeEvery {
			t.Errorf("240 came within %v", waited)
		}
	})
}

// A client that waits for the server keeps its place for longer than a silent one, but not for
// ever; a place that becomes free is given away at once.
func TestStrangersWaitForTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(800)
		var passes []*Pass
		cut := 0
		for range 100 {
			p := g.Enter(func() { cut++ })
			p.said.Store(busy)
			passes = append(passes, p)
		}
		enter := func() time.Duration {
			began := time.Now()
			if p := g.Enter(func() {}); p == nil {
				t.Fatal("no place")
			} else {
				p.said.Store(busy)
			}
			return time.Since(began)
		}
		go func() {
			time.Sleep(3 * judgeEvery / 2)
			passes[7].Vouch()
		}()
		if waited := enter(); waited > 2*judgeEvery || cut != 0 {
			t.Errorf("after %v, with %d cut: want the place of the one that is known", waited, cut)
		}
		passes[9].said.Store(int64(time.Since(passes[9].came))) // it is asked now, and says nothing
		if waited := enter(); waited < silentGrace || waited > silentGrace+2*judgeEvery || cut != 1 {
			t.Errorf("after %v, with %d cut: want the place of the silent one", waited, cut)
		}
		if waited := enter(); waited < grace/2 || cut != 2 {
			t.Errorf("after %v, with %d cut: want the place of the first, which has had its time", waited, cut)
		}
	})
}

func TestFullOfKnown(t *testing.T) {
	g := New(20)
	var passes []*Pass
	for range 20 {
		p := g.Enter(func() { t.Error("a known connection was cut") })
		p.Vouch()
		passes = append(passes, p)
	}
	if g.Enter(func() {}) != nil {
		t.Fatal("there was a place too many")
	}
	passes[3].Leave()
	passes[3].Leave()
	p := g.Enter(func() {})
	if p == nil || g.Enter(func() {}) == nil {
		t.Fatal("one who came kept a stranger's place from the next")
	}
	if p.Leave(); g.Len() != 20 {
		t.Errorf("%d have places after one who had lost his left", g.Len())
	}
}

// Whatever happens, there are no more connections than places, and none that is known
// is cut.
func TestGateProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		places := rapid.IntRange(1, 40).Draw(t, "places")
		g := New(places)
		open, known := map[*Pass]bool{}, map[*Pass]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"enter": func(t *rapid.T) {
				var p *Pass
				for p := range open { // all have had their time
					p.came = p.came.Add(-grace)
				}
				p = g.Enter(func() {
					if known[p] {
						t.Fatal("a known connection was cut")
					}
					delete(open, p)
				})
				if p != nil {
					open[p] = true
				} else if len(known) < places {
					t.Fatalf("no place, with %d known of %d", len(known), places)
				}
			},
			"vouch": func(*rapid.T) {
				for p := range open {
					p.Vouch()
					known[p] = true
					return
				}
			},
			"leave": func(*rapid.T) {
				for p := range open {
					p.Leave()
					delete(open, p)
					delete(known, p)
					return
				}
			},
			"": func(t *rapid.T) {
				if g.Len() != len(open) || len(open) > places {
					t.Fatalf("%d have places, %d are open, %d there are", g.Len(), len(open), places)
				}
			},
		})
	})
}

func TestListener(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan bool, 1)
	g := New(1)
	l := Listen(inner, g, false, func() { refused <- true })
	defer l.Close()
	accepted := make(chan net.Conn, 2)
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- nc
		}
	}()
	dial := func() net.Conn {
		nc, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		return nc
	}
	dial()
	first := <-accepted
	second := dial()
	<-refused
	if _, err := second.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection without a place: %v", err)
	}
	if Bare(first) != first.(*conn).Conn || PassOf(tls.Server(first, nil)) != first.(*conn).pass {
		t.Error("the connection below is another")
	}
	_ = first.Close()
	dial()
	_ = (<-accepted).Close()
}

// Strangers are expelled, and those who are known stay.
func TestExpel(t *testing.T) {
	g := New(100)
	cut := 0
	var passes []*Pass
	for i := range 6 {
		p := g.Enter(func() { cut++ })
		if i%2 == 0 {
			p.Vouch()
		}
		passes = append(passes, p)
	}
	for range 2 {
		if g.Expel(); cut != 3 || g.Len() != 3 {
			t.Errorf("%d were cut, %d have places", cut, g.Len())
		}
	}
	for _, p := range passes {
		p.Leave()
	}
	if g.Len() != 0 {
		t.Errorf("%d have places", g.Len())
	}
}
