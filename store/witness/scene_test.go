package witness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/memstore"
)

// A scene is a guard without its loop, on a store whose calls are counted and may fail: a
// test calls one function of the guard, and looks at what that returns and leaves behind.
type scene struct {
	t     *testing.T
	store *counted
	g     *Guarded
	log   *strings.Builder
}

// theRun is the random text of the guard's process.
const theRun = "RRRRRRRRRRRRRRRRRRRRRRRRRR"

// run returns the random text of another process.
func runOf(letter string) string { return strings.Repeat(letter, len(theRun)) }

// rowOf returns the row of a process.
func rowOf(join int64, letter string) string {
	return rowName(join, runOf(letter)[:runLength]+"1")
}

func newScene(t *testing.T, knows ...func(*record)) *scene {
	t.Helper()
	w, err := OpenFile(filepath.Join(inMemory(t), "witness"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	c := &scene{t: t, store: &counted{Store: memstore.New(), shared: true}, log: &strings.Builder{}}
	began := time.Now()
	opts, err := Options{Name: "me", Clock: func() time.Duration { return time.Hour + time.Since(began) }, Log: slog.New(slog.NewTextHandler(c.log, &slog.HandlerOptions{Level: slog.LevelDebug}))}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	h := newHandle(func(context.Context) (driver.Store, error) { return c.store, nil }, true)
	h.clock = opts.Clock
	c.g = &Guarded{
		opts: opts, witness: w, calls: h, beats: h, run: theRun, kick: make(chan struct{}, 1),
		state: Joining, changed: make(chan struct{}), shared: true, peers: map[string]*sighting{},
	}
	c.g.life, c.g.stop = context.WithCancel(context.Background())
	c.g.allocations, c.g.handBacks = c.g.batchAllocations(allocateFew), c.g.batchHandBacks()
	t.Cleanup(c.g.halt)
	for _, f := range knows {
		c.know(f)
	}
	return c
}

// inMemory returns a directory in memory where the system has one.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "hapax-scene-") //nolint:usetesting // in memory
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// know has the witness know something.
func (c *scene) know(f func(*record)) {
	c.t.Helper()
	if err := c.g.witness.commit(func(b *record) error { f(b); return nil }); err != nil {
		c.t.Fatal(err)
	}
}

// put writes a row, whatever it was; nil removes it.
func (c *scene) put(table, name string, value []byte) {
	c.t.Helper()
	old, err := c.store.Store.Row(c.t.Context(), table, name)
	if err == nil && (old == nil) == (value == nil) && string(old) == string(value) {
		return
	}
	ok, err2 := c.store.Store.SwapRow(c.t.Context(), table, name, old, value)
	if err := errors.Join(err, err2); err != nil || !ok {
		c.t.Fatal(table, name, ok, err)
	}
}

func (c *scene) row(table, name string) string {
	c.t.Helper()
	raw, err := c.store.Store.Row(c.t.Context(), table, name)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(raw)
}

func (c *scene) putJSON(table, name string, value any) []byte {
	c.t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		c.t.Fatal(err)
	}
	c.put(table, name, raw)
	return raw
}

// tag creates a tag that was granted up to a mark.
func (c *scene) tag(name string, mark int64, change ...func(*hapax.Tag)) {
	c.t.Helper()
	def, err := hapax.Tag{Name: name}.WithDefaults()
	if err != nil {
		c.t.Fatal(err)
	}
	def.Mark = mark
	for _, f := range change {
		f(&def)
	}
	if _, err := c.store.CreateTag(c.t.Context(), def, hapax.CreateExplicit); err != nil {
		c.t.Fatal(err)
	}
}

// peer puts the row of another process into the store; how it has ended is empty for one
// that has not.
func (c *scene) peer(row, name string, beat driver.Beat, how string) {
	c.t.Helper()
	value := beat.Encode()
	if how != "" {
		value = beat.EncodeEnded(how)
	}
	c.put(driver.TableBeats, row, value)
	c.put(driver.TableNodes, row, nodeRow{Name: name, Address: "at-" + name, Every: 1000, Serves: true}.encode())
}

func (c *scene) joins(n int64) {
	c.t.Helper()
	c.put(driver.TableGuard, driver.RowJoins, driver.EncodeCounter(n))
}

// member has the guard's process have joined, and serve.
func (c *scene) member(join, count int64) string {
	c.t.Helper()
	row := rowName(join, theRun[:runLength]+"1")
	beat := driver.Beat{Count: count}
	c.put(driver.TableBeats, row, beat.Encode())
	c.put(driver.TableNodes, row, nodeRow{Name: "me", Every: 1000}.encode())
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	c.g.state = Serving
	c.g.me = member{row: row, number: join, beat: beat, acked: beat, contact: c.g.now(), waits: c.g.now(), joins: join, known: true, seen: join}
	return row
}

// fence raises a fence, and returns it with its row.
func (c *scene) fence(f Fence) (*Fence, []byte) {
	c.t.Helper()
	if f.ID == "" {
		f.ID = "F"
	}
	f.Why, f.Code = "a test", "store_rolled_back"
	raw := c.putJSON(driver.TableFence, driver.RowFence, f)
	return &f, raw
}

func (c *scene) standing() *Fence {
	c.t.Helper()
	f, _, err := readFence(c.t.Context(), c.store.Store)
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

// errInjected is why a call of the store fails.
var errInjected = fmt.Errorf("%w: this call fails", hapax.ErrStoreUnavailable)

// A counted store counts its calls; one of them fails.
type counted struct {
	*memstore.Store
	shared bool

	mu      sync.Mutex // guards what follows
	calls   []string
	fails   int                                           // the first call is 1; 0: none
	garble  bool                                          // the one that fails brings rows that are not what they should be
	garbled bool                                          // and there were such
	before  func(call string)                             // called before each, unless nil
	primary string                                        // what identifies the server
	swapped func(name string) bool                        // nil: rows are swapped; false: somebody else was first
	split   bool                                          // a step of several rows is several writes
	contact func(c *driver.Contact)                       // changes what a guarded call has found
	tagged  func(t *hapax.Tag)                            // changes a tag as it is told
	alloc   func(a *hapax.Allocation)                     // changes an allocation
	lists   func(rows *[]driver.Row)                      // changes the rows that a list brings
	ids     func(id string) string                        // changes the store's identity
	pages   func(page *[]hapax.Tag)                       // changes a page of tags
	named   func(tags *[]hapax.Tag)                       // changes what TagsNamed returns
	healed  map[string]driver.Worker                      // by line
	heals   []hapax.Tag                                   // what was healed
	layouts map[string]string                             // with which layout workers were
	handed  [][]driver.HandBackOf                         // hand-backs of many
	reads   func(table, name string, value []byte) []byte // changes a row that is read
}

func (s *counted) call(name string) error {
	s.mu.Lock()
	s.calls = append(s.calls, name)
	fails, before := len(s.calls) == s.fails && !s.garble, s.before
	s.mu.Unlock()
	if before != nil {
		before(name)
	}
	if fails {
		return errInjected
	}
	return nil
}

func (s *counted) isGarbled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.garble && len(s.calls) == s.fails
}

// reset begins to count anew, and has a call fail.
func (s *counted) reset(fails int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.fails = nil, fails
}

func (s *counted) made() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *counted) Shared() bool { return s.shared }

func (s *counted) Close() error { return s.call("close") }

func (s *counted) StoreID(ctx context.Context) (string, error) {
	if err := s.call("id"); err != nil {
		return "", err
	}
	id, err := s.Store.StoreID(ctx)
	if s.ids != nil {
		id = s.ids(id)
	}
	return id, err
}

func (s *counted) Ping(ctx context.Context) error {
	if err := s.call("ping"); err != nil {
		return err
	}
	return s.Store.Ping(ctx)
}

func (s *counted) found(c driver.Contact, err error) (driver.Contact, error) {
	c.Primary = s.primary
	if s.contact != nil {
		s.contact(&c)
	}
	return c, err
}

func (s *counted) Beat(ctx context.Context, p driver.Pulse) (driver.Contact, error) {
	if err := s.call("beat"); err != nil {
		return driver.Contact{}, err
	}
	return s.found(s.Store.Beat(ctx, p))
}

func (s *counted) AllocateAllWith(ctx context.Context, p driver.Pulse, all []driver.AllocateOf) ([]driver.Allocated, driver.Contact, error) {
	if err := s.call("allocate"); err != nil {
		return nil, driver.Contact{}, err
	}
	made, c, err := s.Store.AllocateAllWith(ctx, p, all)
	for i := range made {
		if s.alloc != nil {
			s.alloc(&made[i].Allocation)
		}
	}
	c, err = s.found(c, err)
	return made, c, err
}

func (s *counted) HandBackAllWith(ctx context.Context, p driver.Pulse, all []driver.HandBackOf) ([]bool, driver.Contact, error) {
	if err := s.call("handback"); err != nil {
		return nil, driver.Contact{}, err
	}
	s.mu.Lock()
	s.handed = append(s.handed, all)
	s.mu.Unlock()
	given, c, err := s.Store.HandBackAllWith(ctx, p, all)
	c, err = s.found(c, err)
	return given, c, err
}

func (s *counted) SwapRowWith(ctx context.Context, p driver.Pulse, table, name string, old, next []byte) (bool, driver.Contact, error) {
	if err := s.call("swap " + name); err != nil {
		return false, driver.Contact{}, err
	}
	if s.swapped != nil && !s.swapped(name) {
		return false, driver.Contact{Met: true, Joins: 1 << 40}, nil
	}
	ok, c, err := s.Store.SwapRowWith(ctx, p, table, name, old, next)
	c, err = s.found(c, err)
	return ok, c, err
}

func (s *counted) Row(ctx context.Context, table, name string) ([]byte, error) {
	if err := s.call("row " + name); err != nil {
		return nil, err
	}
	garbled := s.isGarbled()
	raw, err := s.Store.Row(ctx, table, name)
	if garbled && raw != nil {
		raw, s.garbled = []byte("~"), true
	}
	if s.reads != nil {
		raw = s.reads(table, name, raw)
	}
	return raw, err
}

func (s *counted) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	if err := s.call("list " + table); err != nil {
		return nil, err
	}
	garbled := s.isGarbled()
	rows, err := s.Store.ListRows(ctx, table, after, limit)
	for i := range rows {
		if garbled && rows[i].Name != rowCommands {
			rows[i].Value, s.garbled = []byte("~"), true
		}
	}
	if s.lists != nil {
		s.lists(&rows)
	}
	return rows, err
}

func (s *counted) RowsNamed(ctx context.Context, keys ...driver.Key) ([][]byte, error) {
	values := make([][]byte, len(keys))
	for i, key := range keys {
		var err error
		if values[i], err = s.Row(ctx, key.Table, key.Name); err != nil {
			return nil, err
		}
	}
	return values, nil
}

func (s *counted) SwapRows(ctx context.Context, all ...driver.Swap) (bool, error) {
	for _, swap := range all {
		if err := s.call("swap " + swap.Name); err != nil {
			return false, err
		}
		if s.swapped != nil && !s.swapped(swap.Name) {
			return false, nil
		}
		if s.split {
			if ok, err := s.Store.SwapRows(ctx, swap); !ok || err != nil {
				return ok, err
			}
		}
	}
	if s.split {
		return true, nil
	}
	return s.Store.SwapRows(ctx, all...)
}

func (s *counted) Split() bool { return s.split || s.Store.Split() }

func (s *counted) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if err := s.call("swap " + name); err != nil {
		return false, err
	}
	if s.swapped != nil && !s.swapped(name) {
		return false, nil
	}
	return s.Store.SwapRow(ctx, table, name, old, next)
}

func (s *counted) Tag(ctx context.Context, name string) (hapax.Tag, error) {
	if err := s.call("tag " + name); err != nil {
		return hapax.Tag{}, err
	}
	t, err := s.Store.Tag(ctx, name)
	if s.tagged != nil {
		s.tagged(&t)
	}
	return t, err
}

func (s *counted) Tags(ctx context.Context, after string, limit int) ([]hapax.Tag, error) {
	if err := s.call("tags"); err != nil {
		return nil, err
	}
	page, err := s.Store.Tags(ctx, after, limit)
	if s.pages != nil {
		s.pages(&page)
	}
	return page, err
}

func (s *counted) TagsNamed(ctx context.Context, names []string) ([]hapax.Tag, error) {
	if err := s.call("named"); err != nil {
		return nil, err
	}
	tags, err := s.Store.TagsNamed(ctx, names)
	if s.named != nil {
		s.named(&tags)
	}
	return tags, err
}

func (s *counted) Pools(ctx context.Context) ([]driver.Pool, error) {
	if err := s.call("pools"); err != nil {
		return nil, err
	}
	return s.Store.Pools(ctx)
}

func (s *counted) Workers(ctx context.Context, pool string) ([]driver.Worker, error) {
	if err := s.call("workers " + pool); err != nil {
		return nil, err
	}
	return s.Store.Workers(ctx, pool)
}

func (s *counted) HealTag(ctx context.Context, def hapax.Tag) (hapax.Tag, error) {
	if err := s.call("heal " + def.Name); err != nil {
		return hapax.Tag{}, err
	}
	s.mu.Lock()
	s.heals = append(s.heals, def)
	s.mu.Unlock()
	return s.Store.HealTag(ctx, def)
}

func (s *counted) HealWorker(ctx context.Context, layout string, w driver.Worker) (driver.Worker, error) {
	if err := s.call("heal " + w.Pool); err != nil {
		return driver.Worker{}, err
	}
	s.mu.Lock()
	if s.healed == nil {
		s.healed, s.layouts = map[string]driver.Worker{}, map[string]string{}
	}
	s.healed[WorkerLine(w.Pool, w.ID)], s.layouts[w.Pool] = w, layout
	s.mu.Unlock()
	return s.Store.HealWorker(ctx, layout, w)
}

// failing calls a function of the guard once for each call of the store that it makes,
// which fails: that is the function's error. With none that fails it returns nil.
func failing(t *testing.T, set set, ignores ...string) {
	t.Helper()
	each(t, set, false, ignores, func(err error) bool { return errors.Is(err, errInjected) })
}

// garbling is failing with rows that are not what they should be.
func garbling(t *testing.T, set set, ignores ...string) {
	t.Helper()
	each(t, set, true, ignores, func(err error) bool { return err != nil })
}

func each(t *testing.T, set set, garble bool, ignores []string, isRight func(error) bool) {
	t.Helper()
	for n := 1; ; n++ {
		c, f := set(t)
		c.store.reset(n)
		c.store.garble = garble
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		err := f(ctx, c.store)
		cancel()
		made := c.store.made()
		if len(made) < n {
			if err != nil {
				t.Errorf("where no call fails: %v", err)
			}
			if n == 1 {
				t.Error("it makes no call")
			}
			return
		}
		if garble && !c.store.garbled || slices.ContainsFunc(ignores, func(of string) bool { return strings.HasPrefix(made[n-1], of) }) {
			continue
		}
		if !isRight(err) {
			t.Errorf("call %d, %s, fails: it returns %v", n, made[n-1], err)
		}
	}
}
