package witness_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// A simulated world is nodes on one store in virtual time, with clients that take
// numbers and worker IDs and hand them back, and a fate that crashes, stops, copies and
// replaces nodes, cuts and hangs their links, loses answers, changes the primary with
// and without a loss, and puts copies of the store back, at any moment. All of it
// follows from a seed. Nothing may be granted twice; and once all possible witnesses are up
// again, with no operator, every node must be granted something again.
//
// In every fifth world the nodes are up to half a second away from the store, each as far as it is, and
// everything takes longer.
//
// Ten thousand of them take about an hour on two cores:
//
//	go test -run '^TestWorlds$' -timeout 0 ./store/witness -worlds 10000
//
// What the package lists as unseen is kept out: a copy is older than a beat of every
// node that is in contact, whose links are whole then, and one of those is alive and in
// contact when it is put back.

var (
	worlds     = flag.Int("worlds", 8, "how many worlds TestWorlds runs; make soak has more")
	firstWorld = flag.Uint64("world.first", 1, "the first of them")
	oneWorld   = flag.Uint64("world", 0, "run this one only, and tell what happens")
)

func TestWorlds(t *testing.T) {
	if *oneWorld > 0 {
		runWorld(t, *oneWorld, nil)
		return
	}
	for seed := *firstWorld; seed < *firstWorld+uint64(*worlds); seed++ {
		if t.Failed() {
			return
		}
		runWorld(t, seed, nil)
	}
}

// runWorld returns what went wrong.
func runWorld(t *testing.T, seed uint64, twin func(*conn) driver.Store) (wrong []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &simulated{fleet: newFleet(t), rng: rand.New(rand.NewPCG(seed, 7)), seed: seed, end: make(chan struct{}), twin: twin, far: twin == nil && seed%5 == 0}
		w.create("u")
		w.live()
		wrong = w.wrong()
		if twin == nil && (len(wrong) > 0 || *oneWorld > 0) {
			t.Log(w.story.text.String())
		}
		for _, text := range wrong {
			if twin == nil {
				t.Errorf("world %d: %s", seed, text)
			}
		}
	})
	return wrong
}

// A story is what happened in a world.
type story struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *story) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

type simulated struct {
	story story
	*fleet
	rng     *rand.Rand
	seed    uint64
	twin    func(*conn) driver.Store // a broken variant of the store's handles; nil: none
	nodes   []*machine
	clients sync.WaitGroup
	end     chan struct{}
	names   int
	primary int
	stuck   []string
	lossy   bool // answers get lost
	far     bool // the store is far away
}

// long is how long something takes at most, which takes so long where the store is near.
func (w *simulated) long(near time.Duration) time.Duration {
	if w.far {
		return 5 * near
	}
	return near
}

// away returns how far a node is away, by a dice of its own: that of the world would give all others another fate.
func (w *simulated) away(name string) time.Duration {
	if !w.far {
		return 0
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, name) // it never fails
	return time.Duration(rand.New(rand.NewPCG(w.seed, h.Sum64())).IntN(500)) * time.Millisecond
}

func (w *simulated) say(format string, args ...any) {
	fmt.Fprintf(&w.story, "%s "+format+"\n", append([]any{time.Now().UTC().Format("15:04:05.000")}, args...)...)
}

func (w *simulated) some(most time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(most)))/1000*1000 + 7
}

// add starts a node that nobody knows.
func (w *simulated) add() *machine {
	w.names++
	return w.adopt(w.start(fmt.Sprintf("n%d", w.names), w.options()))
}

func (w *simulated) options() witness.Options {
	opts := witness.Options{}
	opts.Log = slog.New(slog.NewTextHandler(&w.story, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", fmt.Sprint("n", w.names))
	return opts
}

func (w *simulated) adopt(m *machine) *machine {
	w.dress(m)
	w.nodes = append(w.nodes, m)
	for k := range 2 {
		rng := rand.New(rand.NewPCG(w.seed, uint64(1000*len(w.nodes)+k)))
		w.clients.Go(func() { w.client(m, rng) })
	}
	return m
}

func (w *simulated) dress(m *machine) {
	m.link.setPrimary(fmt.Sprint("p", w.primary))
	m.link.setWrap(w.twin)
	m.link.setAway(w.away(m.name))
	if w.seed%2 == 0 {
		m.OneStepAtATime()
	}
	rng := rand.New(rand.NewPCG(w.seed, uint64(w.rng.Int64())))
	var mu sync.Mutex
	dice := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(n)
	}
	m.link.set(func(string) error {
		if w.isLossy() && dice(60) == 0 {
			time.Sleep(time.Duration(dice(3000)) * time.Millisecond)
		}
		return nil
	}, func(string) error {
		if w.isLossy() && dice(60) == 0 {
			return errDown
		}
		return nil
	})
}

func (w *simulated) isLossy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lossy
}

func (w *simulated) setLossy(lossy bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lossy = lossy
}

// client takes numbers from a node until the end.
func (w *simulated) client(m *machine, rng *rand.Rand) {
	layout, err := hapax.ParseLayout("leaf")
	if err != nil {
		panic(err)
	}
	for {
		select {
		case <-w.end:
			return
		case <-time.After(time.Duration(50+rng.IntN(700)) * time.Millisecond):
		}
		g := m.guarded()
		if g == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
		if rng.IntN(3) > 0 {
			w.segment(ctx, m, g, rng)
		} else {
			w.worker(ctx, m, g, rng, layout)
		}
		cancel()
	}
}

func (w *simulated) segment(ctx context.Context, m *machine, g *witness.Guarded, rng *rand.Rand) {
	tag := []string{"t", "u"}[rng.IntN(2)]
	a, err := g.Allocate(ctx, tag, 1+rng.Int64N(100), "")
	if err != nil {
		return
	}
	used := a.Grant
	if rng.IntN(2) == 0 {
		used.Hi = used.Lo + rng.Int64N(used.Len()) + 1
	}
	w.enter(m.name, tag, used)
	w.say("%s uses %s %v of %v, token %d", m.name, tag, used, a.Grant, a.Tag.Token)
	if used.Hi < a.Grant.Hi {
		err = g.HandBack(ctx, a, used.Hi)
		w.say("%s hands back %s from %d of %v: %v", m.name, tag, used.Hi, a.Grant, err)
	}
}

func (w *simulated) worker(ctx context.Context, m *machine, g *witness.Guarded, rng *rand.Rand, layout hapax.Layout) {
	term := hapax.Term{Now: time.Now().AddDate(15, 0, 0), Length: time.Second, TTL: 2 * time.Second}
	l, err := g.AcquireWorker(ctx, hapax.AcquireRequest{Pool: "p", Layout: layout, Workers: hapax.WorkerRange{Lo: 0, Hi: 8}, Holder: fmt.Sprint(m.name, rng.Int64()), Term: term})
	if err != nil {
		return
	}
	line := witness.WorkerLine("p", l.Worker)
	for {
		used := l.Grant
		last := rng.IntN(2) == 0
		if last && rng.IntN(2) == 0 {
			used.Hi = used.Lo + rng.Int64N(used.Len()) + 1
		}
		w.enter(m.name, line, used)
		if last {
			_ = g.SealWorker(ctx, l, used.Hi)
			return
		}
		term.Now = term.Now.Add(time.Second)
		if l, err = g.ExtendWorker(ctx, l, layout, term); err != nil {
			return
		}
	}
}

// live lets fate do its work, and waits for everybody to recover.
func (w *simulated) live() {
	for range 2 + w.rng.IntN(3) {
		w.add()
	}
	w.allServe("at first", 20*time.Second)
	for range 3 + w.rng.IntN(4) {
		if len(w.stuck) > 0 {
			break
		}
		w.setLossy(w.rng.IntN(2) == 0)
		for range w.rng.IntN(4) {
			w.event()
			time.Sleep(w.some(3 * time.Second))
		}
		if w.rng.IntN(3) > 0 {
			w.restore()
		}
	}
	w.setLossy(false)
	w.allServe("in the end", 40*time.Second)
	close(w.end)
	w.clients.Wait()
	for _, m := range w.nodes {
		m.crash()
	}
}

// event is one thing that happens to one node.
func (w *simulated) event() {
	m := w.nodes[w.rng.IntN(len(w.nodes))]
	switch w.rng.IntN(9) {
	case 0:
		w.say("%s crashes", m.name)
		m.end()
		time.Sleep(w.some(9 * time.Second))
		w.say("%s starts", m.name)
		m.again(w)
	case 1:
		w.say("%s stops", m.name)
		m.goodbye()
		time.Sleep(w.some(9 * time.Second))
		w.say("%s starts", m.name)
		m.again(w)
	case 2:
		if len(w.nodes) < 7 {
			m := w.add()
			w.say("%s joins", m.name)
		}
	case 3:
		if len(w.nodes) < 7 && m.guarded() != nil {
			w.names++
			c := w.adopt(w.copyOf(m, fmt.Sprintf("n%d", w.names)))
			w.say("%s is a copy of %s", c.name, m.name)
		}
	case 4:
		w.say("%s is cut off", m.name)
		m.link.cut()
		time.Sleep(w.some(9 * time.Second))
		m.link.restore()
		w.say("%s is back", m.name)
	case 5:
		w.say("%s hangs", m.name)
		m.link.hang()
		time.Sleep(w.some(9 * time.Second))
		m.link.unhang()
	case 6:
		w.primary++
		w.say("primary p%d, nothing is lost", w.primary)
		for _, m := range w.nodes {
			m.link.setPrimary(fmt.Sprint("p", w.primary))
		}
	case 7: // it is gone for good, with its disk; the others have time to see it
		if len(w.nodes) < 3 {
			return
		}
		time.Sleep(w.long(3 * time.Second)) // what was lost just now has been noticed
		w.allServe("before a loss of a node", 40*time.Second)
		time.Sleep(w.long(2 * time.Second))
		w.say("%s is gone for good", m.name)
		if w.rng.IntN(2) == 0 {
			m.end()
		} else {
			m.goodbye()
		}
		w.remove(m)
		w.allServe("after a loss of a node", 40*time.Second)
		time.Sleep(w.long(4 * wait)) // to be read by one, twice as long as a living node may take, in spite of lost answers; and then by all
	}
}

func (w *simulated) remove(m *machine) {
	for i := range w.nodes {
		if w.nodes[i] == m {
			w.nodes = append(w.nodes[:i:i], w.nodes[i+1:]...)
			return
		}
	}
}

// restore takes a copy, lets everybody make a beat, lets more happen, and puts it back.
func (w *simulated) restore() {
	w.allServe("before a copy", 40*time.Second)
	lossy := w.isLossy()
	w.setLossy(false)
	time.Sleep(w.long(4 * time.Second)) // calls that were delayed are over
	w.say("a copy is taken")
	backup := w.store.Snapshot()
	time.Sleep(w.long(1500*time.Millisecond) + w.some(time.Second))
	w.setLossy(lossy)
	for range w.rng.IntN(3) {
		w.event()
		time.Sleep(w.some(2 * time.Second))
	}
	w.setLossy(false)
	if !w.oneHasServedSince() {
		return
	}
	if w.rng.IntN(3) == 0 {
		w.primary++
		for _, m := range w.nodes {
			m.link.setPrimary(fmt.Sprint("p", w.primary))
		}
	}
	w.say("the copy is put back")
	w.store.Restore(backup)
	if w.rng.IntN(3) == 0 { // and the next thing happens during the healing
		time.Sleep(w.some(9 * time.Second))
		if w.rng.IntN(3) == 0 && w.oneFound() {
			again := memstore.New()
			again.Restore(backup)
			w.say("the copy is put back again")
			w.store.Restore(again)
		} else {
			w.harmless()
		}
	}
}

// harmless is an event after which all possible witnesses are still there.
func (w *simulated) harmless() {
	m := w.nodes[w.rng.IntN(len(w.nodes))]
	switch w.rng.IntN(3) {
	case 0:
		w.say("%s crashes during the healing", m.name)
		m.end()
		time.Sleep(w.some(4 * time.Second))
		m.again(w)
	case 1:
		w.say("%s stops during the healing", m.name)
		m.goodbye()
		time.Sleep(w.some(4 * time.Second))
		m.again(w)
	case 2:
		if len(w.nodes) < 7 {
			w.say("another joins during the healing")
			w.add()
		}
	}
}

// oneHasServedSince reports whether a node is alive and in contact.
func (w *simulated) oneHasServedSince() bool {
	for _, m := range w.nodes {
		if g := m.guarded(); g != nil && g.Status().State == witness.Serving && m.link.whole() {
			return true
		}
	}
	return false
}

// oneFound reports whether a node has found the loss, which it remembers.
func (w *simulated) oneFound() bool {
	for _, m := range w.nodes {
		if g := m.guarded(); g != nil && g.Status().State == witness.Refusing {
			return true
		}
	}
	return false
}

// allServe waits until every node is granted something.
func (w *simulated) allServe(when string, most time.Duration) {
	began := time.Now()
	for _, m := range w.nodes {
		for m.guarded() != nil {
			ctx, cancel := context.WithTimeout(context.Background(), w.long(time.Second))
			err := m.guarded().Ping(ctx)
			cancel()
			if err == nil {
				break
			}
			if time.Since(began) > w.long(most) {
				st := m.guarded().Status()
				w.stuck = append(w.stuck, fmt.Sprintf("%s, %s is granted nothing for %v: %v: %s, missing %v", when, m.name, most, err, st.State, st.Missing))
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	w.say("all serve %s, after %v", when, time.Since(began))
}

func (w *simulated) wrong() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, text := range w.twice {
		all = append(all, "twice: "+text)
	}
	w.twice = nil
	return append(all, strings.Join(w.stuck, "; "))[:len(all)+min(1, len(w.stuck))]
}
