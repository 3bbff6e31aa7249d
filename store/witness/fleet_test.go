package witness_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
	"github.com/hapax-id/hapax/store/witness"
)

// wait is how long a living node takes to meet its store at most, at the defaults.
const wait = 5 * time.Second

// A fleet is nodes on one store in virtual time, and every number that they were granted.
type fleet struct {
	t     *testing.T
	store *memstore.Store
	dir   string
	wrap  func(*conn) driver.Store // of the handles of nodes that are started from now on; nil: none

	mu    sync.Mutex
	used  map[string][]use
	twice []string
}

type use struct {
	grant hapax.Grant
	by    string
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{t: t, store: memstore.New(), dir: memoryDir(t), used: map[string][]use{}}
	f.create("t")
	return f
}

// memoryDir returns a directory in memory where the system has one: what the witnesses of
// a simulated world sync need not last.
func memoryDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "hapax-world-") //nolint:usetesting // in memory
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (f *fleet) create(tag string) {
	f.t.Helper()
	def, err := hapax.Tag{Name: tag}.WithDefaults()
	if err == nil {
		_, err = f.store.CreateTag(f.t.Context(), def, hapax.CreateExplicit)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// A machine is a node: its witness file, its link with the store, and the process on it.
type machine struct {
	*witness.Guarded
	f       *fleet
	name    string
	path    string
	witness *witness.Witness
	link    *link
	opts    witness.Options

	up   sync.Mutex // guards down; held while the process is started or ended
	down bool
}

// guarded returns the running process's guard; nil while there is none.
func (m *machine) guarded() *witness.Guarded {
	m.up.Lock()
	defer m.up.Unlock()
	if m.down {
		return nil
	}
	return m.Guarded
}

// end is crash for a machine that clients use meanwhile.
func (m *machine) end() {
	m.up.Lock()
	m.down = true
	m.up.Unlock()
	m.crash()
}

// goodbye is stop for such a machine; the answer may get lost.
func (m *machine) goodbye() {
	m.up.Lock()
	m.down = true
	m.up.Unlock()
	_ = m.Guarded.Close()
	_ = m.witness.Close()
}

// again starts such a machine.
func (m *machine) again(w *simulated) {
	m.up.Lock()
	defer m.up.Unlock()
	m.start()
	w.dress(m)
	m.down = false
}

// start runs a process on a new machine.
func (f *fleet) start(name string, opts ...witness.Options) *machine {
	f.t.Helper()
	m := &machine{f: f, name: name, path: filepath.Join(f.dir, name)}
	if len(opts) > 0 {
		m.opts = opts[0]
	}
	m.opts.Name = name
	m.start()
	f.t.Cleanup(m.crash)
	return m
}

func (m *machine) start() {
	m.f.t.Helper()
	var err error
	if m.witness, err = witness.OpenFile(m.path); err != nil {
		m.f.t.Fatal(err)
	}
	m.link = &link{store: m.f.store, wrap: m.f.wrap}
	m.link.restored = sync.NewCond(&m.link.mu)
	if m.Guarded, err = witness.GuardOpened(m.link.open, m.witness, m.opts); err != nil {
		m.f.t.Fatal(err)
	}
}

// crash ends the process with no goodbye.
func (m *machine) crash() {
	m.link.cut()
	m.Kill()
	_ = m.witness.Close()
}

// stop ends it in good order.
func (m *machine) stop() {
	m.f.t.Helper()
	if err := errors.Join(m.Guarded.Close(), m.witness.Close()); err != nil {
		m.f.t.Error(err)
	}
}

// take asks for n numbers of a tag, and enters them.
func (m *machine) take(tag string, n int64) error {
	ctx, cancel := context.WithTimeout(m.f.t.Context(), 3*time.Second)
	defer cancel()
	a, err := m.Allocate(ctx, tag, n, "")
	if err == nil {
		m.f.enter(m.name, tag, a.Grant)
	}
	return err
}

// must is take, and the test fails if it does.
func (m *machine) must(tag string, n int64) {
	m.f.t.Helper()
	if err := m.take(tag, n); err != nil {
		m.f.t.Fatalf("%s: %v", m.name, err)
	}
}

// within waits until the node is granted numbers, and returns how long that took.
func (m *machine) within(most time.Duration) time.Duration {
	m.f.t.Helper()
	began := time.Now()
	for {
		err := m.take("t", 10)
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > most {
			m.f.t.Fatalf("%s is granted nothing for %v: %v; status %+v", m.name, most, err, m.Status())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (f *fleet) enter(by, tag string, g hapax.Grant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, u := range f.used[tag] {
		if g.Lo < u.grant.Hi && u.grant.Lo < g.Hi {
			f.twice = append(f.twice, fmt.Sprintf("%s: %v by %s and %v by %s", tag, u.grant, u.by, g, by))
		}
	}
	f.used[tag] = append(f.used[tag], use{g, by})
}

// once fails the test if a number was granted twice.
func (f *fleet) once() {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, twice := range f.twice {
		f.t.Error("twice:", twice)
	}
}

// world runs a test in virtual time.
func world(t *testing.T, f func(t *testing.T, f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		fl := newFleet(t)
		f(t, fl)
		fl.once()
	})
}

// A link is a node's connections with the store. It can be cut, and it can hang.
type link struct {
	store *memstore.Store

	mu       sync.Mutex
	down     bool
	hangs    bool          // calls on handles that are open neither answer nor fail
	trip     time.Duration // of a round trip
	back     time.Duration // of an answer, besides
	primary  string
	wrap     func(*conn) driver.Store
	opens    func() error // called before a handle is opened
	restored *sync.Cond
	before   func(op string) error // called before each call
	lose     func(op string) error // after it: the answer is lost
}

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
}

func (l *link) restore() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down, l.hangs = false, false
}

func (l *link) unhang() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hangs = false
}

// whole reports whether calls get through.
func (l *link) whole() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.down && !l.hangs
}

func (l *link) open(ctx context.Context) (driver.Store, error) {
	h := &conn{Store: l.store, link: l}
	if err := h.pass(ctx, "open"); err != nil {
		return nil, err
	}
	l.mu.Lock()
	opens := l.opens
	l.mu.Unlock()
	if opens != nil {
		if err := opens(); err != nil {
			return nil, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wrap != nil {
		return l.wrap(h), nil
	}
	return h, nil
}

// setWrap has handles that are opened from now on be broken.
func (l *link) setWrap(wrap func(*conn) driver.Store) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrap = wrap
}

// setAway has every round trip take so long from now on, half of it until the store is asked.
func (l *link) setAway(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trip, l.back = d/2, d-d/2
}

// setBefore has a function called before each call from now on.
func (l *link) setBefore(before func(op string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before = before
}

// A conn is one handle on a link.
type conn struct {
	*memstore.Store
	link *link
	hung bool // opened before the link began to hang
}

var errDown = fmt.Errorf("%w: the link is down", hapax.ErrStoreUnavailable)

// hang makes the handles that are open hang for good.
func (l *link) hang() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hangs = true
}

func (c *conn) pass(ctx context.Context, op string) error {
	l := c.link
	l.mu.Lock()
	down, before, trip := l.down, l.before, l.trip
	if op == "open" {
		l.mu.Unlock()
		if down {
			return errDown
		}
		return l.travel(ctx, 200*time.Millisecond+openTrips*trip) // dials and logs in
	}
	c.hung = c.hung || l.hangs
	hung := c.hung
	l.mu.Unlock()
	if hung {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, ctx.Err())
	}
	if down {
		return errDown
	}
	if before != nil {
		if err := before(op); err != nil {
			return err
		}
	}
	return l.travel(ctx, time.Millisecond+trip)
}

// openTrips is how many answers a handle waits for until it is open, as with Redis and MariaDB.
const openTrips = 6

// travel waits for an answer, for no longer than a call may take.
func (l *link) travel(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, context.Cause(ctx))
	}
}

func (c *conn) after(op string) error {
	c.link.mu.Lock()
	lose, back := c.link.lose, c.link.back
	c.link.mu.Unlock()
	time.Sleep(back)
	if lose != nil {
		return lose(op)
	}
	return nil
}

// Close leaves the store open, which others use too.
func (c *conn) Close() error { return nil }

func (c *conn) contact(ct driver.Contact) driver.Contact {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	ct.Primary = c.link.primary
	return ct
}

func (c *conn) StoreID(ctx context.Context) (string, error) {
	if err := c.pass(ctx, "id"); err != nil {
		return "", err
	}
	return c.Store.StoreID(ctx)
}

func (c *conn) Beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	if err := c.pass(ctx, "beat"); err != nil {
		return driver.Contact{}, err
	}
	ct, err := c.Store.Beat(ctx, p)
	if lost := c.after("beat"); lost != nil {
		return driver.Contact{}, lost
	}
	return c.contact(ct), err
}

func (c *conn) AllocateAllWith(ctx context.Context, p driver.Pulse, all []driver.AllocateOf) ([]driver.Allocated, driver.Contact, error) {
	if err := c.pass(ctx, "allocate"); err != nil {
		return nil, driver.Contact{}, err
	}
	made, ct, err := c.Store.AllocateAllWith(ctx, p, all)
	if lost := c.after("allocate"); lost != nil {
		return nil, driver.Contact{}, lost
	}
	return made, c.contact(ct), err
}

func (c *conn) HandBackAllWith(ctx context.Context, p driver.Pulse, all []driver.HandBackOf) ([]bool, driver.Contact, error) {
	if err := c.pass(ctx, "handback"); err != nil {
		return nil, driver.Contact{}, err
	}
	given, ct, err := c.Store.HandBackAllWith(ctx, p, all)
	if lost := c.after("handback"); lost != nil {
		return nil, driver.Contact{}, lost
	}
	return given, c.contact(ct), err
}

func (c *conn) SwapRowWith(ctx context.Context, p driver.Pulse, table, name string, old, next []byte) (bool, driver.Contact, error) {
	if err := c.pass(ctx, "swap"); err != nil {
		return false, driver.Contact{}, err
	}
	ok, ct, err := c.Store.SwapRowWith(ctx, p, table, name, old, next)
	if lost := c.after("swap"); lost != nil {
		return false, driver.Contact{}, lost
	}
	return ok, c.contact(ct), err
}

func (c *conn) Row(ctx context.Context, table, name string) ([]byte, error) {
	if err := c.pass(ctx, "row"); err != nil {
		return nil, err
	}
	return c.Store.Row(ctx, table, name)
}

func (c *conn) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	if err := c.pass(ctx, "list"); err != nil {
		return nil, err
	}
	return c.Store.ListRows(ctx, table, after, limit)
}

func (c *conn) RowsNamed(ctx context.Context, keys ...driver.Key) ([][]byte, error) {
	if err := c.pass(ctx, "row"); err != nil {
		return nil, err
	}
	return c.Store.RowsNamed(ctx, keys...)
}

func (c *conn) SwapRows(ctx context.Context, all ...driver.Swap) (bool, error) {
	if err := c.pass(ctx, "swap"); err != nil {
		return false, err
	}
	ok, err := c.Store.SwapRows(ctx, all...)
	if lost := c.after("swap"); lost != nil {
		return false, lost
	}
	return ok, err
}

func (c *conn) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if err := c.pass(ctx, "swap"); err != nil {
		return false, err
	}
	return c.Store.SwapRow(ctx, table, name, old, next)
}

func (c *conn) Pools(ctx context.Context) ([]driver.Pool, error) {
	if err := c.pass(ctx, "pools"); err != nil {
		return nil, err
	}
	return c.Store.Pools(ctx)
}

func (c *conn) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	if err := c.pass(ctx, "tags"); err != nil {
		return nil, err
	}
	return c.Store.Tags(ctx, after, limit)
}

func (c *conn) TagsNamed(ctx context.Context, names []string) ([]hapax.Tag, error) {
	if err := c.pass(ctx, "named"); err != nil {
		return nil, err
	}
	return c.Store.TagsNamed(ctx, names)
}

func (c *conn) HealTag(ctx context.Context, def hapax.Tag) (hapax.Tag, error) {
	if err := c.pass(ctx, "heal"); err != nil {
		return hapax.Tag{}, err
	}
	tag, err := c.Store.HealTag(ctx, def)
	if lost := c.after("heal"); lost != nil {
		return hapax.Tag{}, lost
	}
	return tag, err
}

// set has calls fail before they reach the store, or their answers be lost.
func (l *link) set(before, lose func(op string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before, l.lose = before, lose
}

func (l *link) setOpens(opens func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opens = opens
}

func (l *link) setPrimary(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.primary = name
}

// copyOf starts a process on a copy of a machine's directory.
func (f *fleet) copyOf(m *machine, name string) *machine {
	f.t.Helper()
	f.copyDirectory(m, name)
	return f.start(name)
}

// copyDirectory leaves a copy of a machine's directory under a name.
func (f *fleet) copyDirectory(m *machine, name string) {
	f.t.Helper()
	text, err := os.ReadFile(m.path)
	if err == nil {
		err = os.WriteFile(filepath.Join(f.dir, name), text, 0o600)
		witness.AwaitTick(f.t, m.path+".lock")
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) row(table, name string) []byte {
	f.t.Helper()
	raw, err := f.store.Row(f.t.Context(), table, name)
	if err != nil {
		f.t.Fatal(err)
	}
	return raw
}

func emptyStore() *memstore.Store { return memstore.New() }

// sameRows reports whether two stores have the same rows of the guard.
func sameRows(t *testing.T, x, y *memstore.Store) bool {
	t.Helper()
	for _, table := range []string{driver.TableBeats, driver.TableNodes, driver.TableFence, driver.TableGuard, driver.TableEvidence} {
		rx, err1 := x.ListRows(t.Context(), table, "", 1000)
		ry, err2 := y.ListRows(t.Context(), table, "", 1000)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(rx, ry) {
			return false
		}
	}
	return true
}
