package coord

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

// memory is a space in memory. Its tokens count writes, as ZooKeeper's do.
type memory struct {
	mu     sync.Mutex // guards everything below
	cells  map[Key]Cell
	reads  int
	swaps  int
	writes int
	lose   bool // answers to writes

	meetings int
	most     int // changes in one step; 0: any number
}

func (m *memory) Read(_ context.Context, key Key) (Cell, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	return m.cellLocked(key), nil
}

func (m *memory) ReadEach(_ context.Context, table string, names []string) ([][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	raws := make([][]byte, len(names))
	for i, name := range names {
		raws[i] = m.cells[Key{table, name}].Raw
	}
	return raws, nil
}

func (m *memory) cellLocked(key Key) Cell {
	c, ok := m.cells[key]
	if !ok {
		c.Token = 0
	}
	c.Known = true
	return c
}

func (m *memory) Swap(_ context.Context, key Key, old Cell, next []byte) (bool, Cell, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.swaps++
	if now := m.cellLocked(key); old.Token != now.Token {
		return false, Cell{}, nil
	}
	m.writeLocked(key, next)
	now := m.cellLocked(key)
	if m.lose {
		return false, Cell{}, fmt.Errorf("%w: the answer was lost", hapax.ErrStoreUnavailable)
	}
	return true, now, nil
}

func (m *memory) Beat(_ context.Context, meeting Heartbeat, changes ...Change) (BeatAnswer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.meetings++
	own, fence := m.cellLocked(meeting.Own), m.cellLocked(FenceKey)
	met := BeatAnswer{Joins: m.cellLocked(JoinsKey).Raw}
	if len(changes) == 0 {
		met.Changes = m.cellLocked(ChangesKey).Raw
		if meeting.Watch.Name != "" {
			met.Watches, met.Watched = true, m.cellLocked(meeting.Watch).Raw
		}
	}
	met.Done = bytes.Compare(own.Raw, meeting.Was) >= 0 && fence.Raw == nil
	for _, c := range changes {
		met.Done = met.Done && c.Old.Token == m.cellLocked(c.Key).Token
	}
	if m.most > 0 && len(changes) > m.most {
		return BeatAnswer{}, ErrTooMany
	}
	if !met.Done {
		met.Own, met.Fence = own.Raw, fence.Raw
	} else if bytes.Compare(own.Raw, meeting.Now) < 0 {
		m.writeLocked(meeting.Own, meeting.Now)
	}
	for _, c := range changes {
		if met.Done {
			m.writeLocked(c.Key, c.Next)
		}
		met.Cells = append(met.Cells, m.cellLocked(c.Key))
	}
	if met.Done && m.lose {
		return BeatAnswer{}, fmt.Errorf("%w: the answer was lost", hapax.ErrStoreUnavailable)
	}
	return met, nil
}

func (m *memory) writeLocked(key Key, next []byte) {
	m.writes++
	if m.cells[key] = (Cell{Raw: next, Known: true, Token: m.writes}); next == nil {
		delete(m.cells, key)
	}
}

func (m *memory) List(_ context.Context, table string, after string, limit int, f func(string, []byte) error) error {
	m.mu.Lock()
	cells := maps.Clone(m.cells)
	m.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(cells), func(a, b Key) int { return strings.Compare(a.Name, b.Name) })
	for _, key := range keys {
		if key.Table != table || key.Name <= after || limit <= 0 {
			continue
		}
		limit--
		if err := f(key.Name, cells[key].Raw); err != nil {
			return err
		}
	}
	return nil
}

// handle makes a whole store of rows in memory.
type handle struct {
	*Rows
	id string
}

func newHandle(m *memory) handle {
	return handle{NewRows(&Calls{Service: "memory"}, m), rand.Text()}
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
		Open: func(testing.TB) storetest.Handle { return newHandle(&memory{cells: map[Key]Cell{}}) },
	})
}

// TestOldRows: what a handle remembers is never the reason for an error, and
// saves it the read.
func TestOldRows(t *testing.T) {
	m := &memory{cells: map[Key]Cell{}}
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

// TestForgetting: a handle remembers a bounded number of rows.
func TestForgetting(t *testing.T) {
	r := newHandle(&memory{})
	for i := range int64(maxSlots + 10) {
		r.slot(Key{"p", fmt.Sprint(i)})
	}
	if n := len(r.slots); n > maxSlots {
		t.Errorf("%d rows are remembered; at most %d are allowed", n, maxSlots)
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
		raw := encodeTag(c.tag)
		if string(raw) != c.want {
			t.Errorf("%s; want %s", raw, c.want)
		}
		if got, err := decodeTag("t", append(raw, '\n')); err != nil || got != c.tag {
			t.Errorf("%+v, error %v; want %+v", got, err, c.tag)
		}
	}
}

// TestUnknownOutcome: after a lost answer nothing that was known before is used.
func TestUnknownOutcome(t *testing.T) {
	m := &memory{cells: map[Key]Cell{}}
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
	m.reads, m.swaps = 0, 0
	got, err := a.Allocate(t.Context(), "t", 5, "")
	must(t, err)
	if got.Grant != (hapax.Grant{Lo: 6, Hi: 11}) || m.reads != 1 || m.swaps != 1 {
		t.Errorf("the grant after a lost answer is %v with %d reads and %d writes; want [6, 11) with one each", got.Grant, m.reads, m.swaps)
	}
}

// TestCorruptRows: what hapax did not write is refused, not guessed at.
func TestCorruptRows(t *testing.T) {
	for name, raw := range map[string]string{
		"empty":         ``,
		"no JSON":       `orders`,
		"cut off":       `{"kind":"segment","start":1`,
		"two objects":   `{"kind":"snowflake","pool":"p"}{}`,
		"unknown field": `{"kind":"snowflake","pool":"p","colour":1}`,
		"no kind":       `{"start":1,"step":1,"min_step":1,"max_step":1,"mark":1}`,
		"no mark":       `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"delta":1}`,
		"mark too high": `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"delta":1,"mark":9223372036854775807}`,
		"negative run":  `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"delta":1,"mark":5,"run":-1}`,
		"run too long":  `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"delta":1,"mark":5,"run":6}`,
		"no delta":      `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"mark":1}`,
		"negative step": `{"kind":"segment","start":1,"step":-1,"min_step":1,"max_step":1,"delta":1,"mark":1}`,
		"fraction":      `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"delta":1,"mark":1.5}`,
		"beyond int64":  `{"kind":"segment","start":1,"step":1,"min_step":1,"max_step":1,"mark":9223372036854775808}`,
	} {
		m := &memory{cells: map[Key]Cell{tagKey("t"): {Known: true, Raw: []byte(raw), Token: 1}}}
		h := newHandle(m)
		if _, err := h.Allocate(t.Context(), "t", 1, ""); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("%s: Allocate: error is %v; want ErrStoreCorrupt", name, err)
		}
		if _, err := h.Tags(t.Context(), "", 10); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("%s: Tags: error is %v; want ErrStoreCorrupt", name, err)
		}
		if got := m.cells[tagKey("t")].Raw; !bytes.Equal(got, []byte(raw)) {
			t.Errorf("%s: it was overwritten with %s", name, got)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
