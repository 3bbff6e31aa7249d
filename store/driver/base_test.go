package driver_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/storetest"
)

// memory is a KV in memory. Its versions count writes, as ZooKeeper's do, and it tells nothing
// of a row whose change was refused.
type memory struct {
	mu    sync.Mutex // guards everything below
	cells map[driver.Key]driver.Cell

	reads  int // rows
	steps  int
	writes int
	lose   bool // answers to steps that write
	most   int  // changes in one step; 0: any number
	spoil  int  // so many steps are refused although their conditions hold
}

func newMemory() *memory { return &memory{cells: map[driver.Key]driver.Cell{}} }

func (m *memory) cellLocked(key driver.Key) driver.Cell {
	c, ok := m.cells[key]
	if !ok {
		c.Version = 0
	}
	c.Known = true
	return c
}

func (m *memory) cellsLocked(keys []driver.Key) []driver.Cell {
	cells := make([]driver.Cell, len(keys))
	for i, key := range keys {
		cells[i] = m.cellLocked(key)
	}
	return cells
}

func (m *memory) Get(_ context.Context, _ driver.Freshness, keys ...driver.Key) ([]driver.Cell, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads += len(keys)
	return m.cellsLocked(keys), nil
}

func (m *memory) Step(_ context.Context, step driver.Step) (driver.Result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps++
	if m.most > 0 && len(step.Each) > m.most {
		return driver.Result{}, driver.ErrTooMany
	}
	r := driver.Result{Met: m.spoil == 0, Look: m.cellsLocked(step.Look), Each: make([]driver.Outcome, len(step.Each))}
	m.spoil = max(0, m.spoil-1)
	for _, c := range step.If {
		now := m.cellLocked(c.Key)
		r.If = append(r.If, now)
		r.Met = r.Met && c.Holds(now.Value)
	}
	for _, c := range step.Then {
		now := m.cellLocked(c.Key)
		r.Then = append(r.Then, driver.Outcome{Now: now})
		r.Met = r.Met && c.Old.Version == now.Version
	}
	if !r.Met {
		return r, nil
	}
	for i, c := range step.Then {
		m.writeLocked(c.Key, c.Next)
		r.Then[i] = driver.Outcome{Done: true, Now: m.cellLocked(c.Key)}
	}
	for _, p := range step.Raise {
		if bytes.Compare(m.cellLocked(p.Key).Value, p.Value) < 0 {
			m.writeLocked(p.Key, p.Value)
		}
	}
	for i, c := range step.Each {
		if r.Each[i].Done = c.Old.Version == m.cellLocked(c.Key).Version; r.Each[i].Done {
			m.writeLocked(c.Key, c.Next)
			r.Each[i].Now = m.cellLocked(c.Key)
		}
	}
	if m.lose {
		return driver.Result{}, fmt.Errorf("%w: the answer was lost", hapax.ErrStoreUnavailable)
	}
	return r, nil
}

func (m *memory) writeLocked(key driver.Key, next []byte) {
	m.writes++
	if m.cells[key] = (driver.Cell{Value: next, Known: true, Version: m.writes}); next == nil {
		delete(m.cells, key)
	}
}

func (m *memory) Scan(_ context.Context, table string, after string, limit int) (rows []driver.Row, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(m.cells), func(a, b driver.Key) int { return strings.Compare(a.Name, b.Name) })
	for _, key := range keys {
		if key.Table == table && key.Name > after && len(rows) < limit {
			rows = append(rows, driver.Row{Name: key.Name, Value: m.cells[key].Value})
		}
	}
	return rows, nil
}

// handle makes a whole store of rows in memory.
type handle struct {
	*driver.Base
	calls *driver.Calls
	id    string
}

func newHandle(m driver.KV) handle {
	calls := &driver.Calls{Service: "memory"}
	return handle{driver.NewBase(calls, m, driver.BaseOptions{}), calls, rand.Text()}
}

func (h handle) StoreID(ctx context.Context) (string, error) { return h.id, h.Ping(ctx) }
func (h handle) Ping(ctx context.Context) error {
	_, cancel, err := h.calls.Begin(ctx)
	if err == nil {
		cancel()
	}
	return err
}
func (h handle) Close() error { h.calls.End(); return nil }

func TestConformance(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Open: func(testing.TB) storetest.Handle { return newHandle(newMemory()) },
	})
}

// TestOldRows: what a handle remembers is never the reason for an error, and
// saves it the read.
func TestOldRows(t *testing.T) {
	m := newMemory()
	a, b := newHandle(m), newHandle(m)
	def, err := hapax.Tag{Name: "t"}.WithDefaults()
	must(t, err)
	_, err = a.CreateTag(t.Context(), def, hapax.CreateFirstUse)
	must(t, err)
	_, err = a.DeleteTag(t.Context(), "t")
	must(t, err)
	_, err = b.CreateTag(t.Context(), def, hapax.CreateExplicit)
	must(t, err)
	got, err := a.Allocate(t.Context(), "t", 5, "")
	must(t, err)
	if got.Grant != (hapax.Grant{Lo: 1, Hi: 6}) {
		t.Errorf("the grant after another handle revived the tag is %v", got.Grant)
	}
	m.reads = 0
	for range 10 {
		_, err := a.Allocate(t.Context(), "t", 5, "")
		must(t, err)
	}
	if m.reads != 0 {
		t.Errorf("%d reads for ten grants in a row; want none", m.reads)
	}
	_, err = b.Allocate(t.Context(), "t", 5, "")
	must(t, err)
	if m.reads != 1 {
		t.Errorf("%d reads for a grant after another handle's; want one", m.reads)
	}
}

// TestRowText holds the stored form, which other versions read.
func TestRowText(t *testing.T) {
	full := driver.Tag{Tag: hapax.Tag{
		Name: "t", Kind: hapax.KindSegment, Start: 1, Step: 2, MinStep: 1, MaxStep: 3, Delta: 10, Remainder: 4, Mark: 1<<53 + 1, Extra: "x", Deleted: true,
	}, KeyHash: "0f", Run: 20}
	flake := driver.Tag{Tag: hapax.Tag{Name: "t", Kind: hapax.KindSnowflake, Pool: "p"}}
	for _, c := range []struct {
		tag  driver.Tag
		want string
	}{
		{full, `{"kind":"segment","start":1,"step":2,"min_step":1,"max_step":3,"delta":10,"remainder":4,"mark":9007199254740993,"run":20,"key_hash":"0f","extra":"x","deleted":true}`},
		{flake, `{"kind":"snowflake","pool":"p"}`},
	} {
		raw := driver.EncodeTag(c.tag)
		if string(raw) != c.want {
			t.Errorf("%s; want %s", raw, c.want)
		}
		if got, err := driver.DecodeTag("t", append(raw, '\n')); err != nil || got != c.tag {
			t.Errorf("%+v, error %v; want %+v", got, err, c.tag)
		}
	}
}

// TestUnknownOutcome: after a lost answer nothing that was known before is used.
func TestUnknownOutcome(t *testing.T) {
	m := newMemory()
	a := newHandle(m)
	def, err := hapax.Tag{Name: "t"}.WithDefaults()
	must(t, err)
	_, err = a.CreateTag(t.Context(), def, hapax.CreateFirstUse)
	must(t, err)
	m.lose = true
	if _, err := a.Allocate(t.Context(), "t", 5, ""); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Fatalf("error is %v; want ErrStoreUnavailable", err)
	}
	m.lose = false
	m.reads, m.steps = 0, 0
	got, err := a.Allocate(t.Context(), "t", 5, "")
	must(t, err)
	if got.Grant != (hapax.Grant{Lo: 6, Hi: 11}) || m.reads != 1 || m.steps != 1 {
		t.Errorf("the grant after a lost answer is %v with %d reads and %d writes; want [6, 11) with one each", got.Grant, m.reads, m.steps)
	}
}

// TestCorruptRows: what hapax did not write is refused, not guessed at.
func TestCorruptRows(t *testing.T) {
	for name, raw := range map[string]string{
		"empty":          ``,
		"no JSON":        `orders`,
		"cut off":        `{"kind":"segment","start":1`,
		"two objects":    `{"kind":"snowflake","pool":"p"}{}`,
		"unknown field":  `{"kind":"snowflake","pool":"p","colour":1}`,
		"no kind":        `{"start":1,"step":1,"min_step":1,"max_step":1,"mark":1}`,
		"no mark":        `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"delta":1}`,
		"mark too high":  `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"delta":1,"mark":9223372036854775807}`,
		"negative run":   `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"delta":1,"mark":5,"run":-1}`,
		"run too long":   `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"delta":1,"mark":5,"run":6}`,
		"no delta":       `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"mark":1}`,
		"negative step":  `{"kind":"segment","start":1,"step":-1,"min_step":1,"max_step":1,"delta":1,"mark":1}`,
		"fraction":       `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"delta":1,"mark":1.5}`,
		"token too high": `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"delta":1,"mark":5,"token":4611686018427387905}`,
		"beyond int64":   `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"mark":9223372036854775808}`,
	} {
		m := &memory{cells: map[driver.Key]driver.Cell{{Name: "t"}: {Known: true, Value: []byte(raw), Version: 1}}}
		h := newHandle(m)
		if _, err := h.Allocate(t.Context(), "t", 1, ""); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("%s: Allocate: error is %v; want ErrStoreCorrupt", name, err)
		}
		if _, err := h.Tag(t.Context(), "t"); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("%s: Tag: error is %v; want ErrStoreCorrupt", name, err)
		}
		if tags, err := h.Tags(t.Context(), "", 10); err != nil || len(tags) != 1 || tags[0] != (hapax.Tag{Name: "t", Kind: hapax.KindUnreadable}) {
			t.Errorf("%s: Tags: %+v, %v; want one that is unreadable", name, tags, err)
		}
		if got := m.cells[driver.Key{Name: "t"}].Value; !bytes.Equal(got, []byte(raw)) {
			t.Errorf("%s: it was overwritten with %s", name, got)
		}
	}
}

// TestLastToken: a tag's token that cannot grow keeps what was granted from coming back, and the
// row stays one that can be read.
func TestLastToken(t *testing.T) {
	row := fmt.Appendf(nil, `{"kind":"segment","start":1,"step":10,"min_step":1,"max_step":10,"delta":1,"mark":1,"token":%d}`, int64(driver.MaxToken))
	h := newHandle(&memory{cells: map[driver.Key]driver.Cell{{Name: "t"}: {Known: true, Value: row, Version: 1}}})
	a, err := h.Allocate(t.Context(), "t", 10, "")
	must(t, err)
	if err := h.HandBack(t.Context(), a, 5); !errors.Is(err, hapax.ErrLeaseLost) {
		t.Errorf("the hand-back has error %v; want ErrLeaseLost", err)
	}
	floor := int64(5)
	_, err = h.UpdateTag(t.Context(), "t", driver.TagUpdate{Floor: &floor})
	must(t, err)
	if tag, err := h.Tag(t.Context(), "t"); err != nil || tag.Mark != 11 || tag.Token != driver.MaxToken {
		t.Errorf("%+v, error %v; want mark 11 and token %d", tag, err, int64(driver.MaxToken))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
