package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var rowChecks = []check{
	{"rows/swap", hasRows, checkSwap},
	{"rows/values", hasRows, checkRowValues},
	{"rows/names", hasRows, checkRowNames},
	{"rows/list", hasRows, checkRowList},
	{"rows/refused", hasRows, checkRowsRefused},
	{"rows/one swap wins", hasRows, checkSwapRace},
	{"rows/next handle", durableRows, checkRowsStay},
}

// swap swaps a row of the check's table; an empty value stands for no row.
func (e *env) swap(table, name, old, next string) bool {
	e.Helper()
	ok, err := e.rows.SwapRow(e.ctx, table, name, valueOf(old), valueOf(next))
	e.must(err)
	return ok
}

// wantValue reports a row that has another value; empty stands for no row.
func (e *env) wantValue(what, table, name, want string) {
	e.Helper()
	got, err := e.rows.Row(e.ctx, table, name)
	e.must(err)
	if string(got) != want || (got == nil) != (want == "") {
		e.Errorf("%s is %.60q; want %.60q", what, got, want)
	}
}

// checkSwap: a row is written, or removed, if its value is the expected one, and
// is left alone otherwise.
func checkSwap(e *env) {
	table := e.name("table")
	current := ""
	for _, c := range []struct {
		name      string
		old, next string
		want      bool
	}{
		{"expected, but there is no row", "a", "b", false},
		{"removal of a row that is not there", "a", "", false},
		{"first", "", "a", true},
		{"first again", "", "b", false},
		{"another value", "b", "c", false},
		{"a longer value", "aa", "c", false},
		{"other case", "A", "c", false},
		{"a space behind", "a ", "c", false},
		{"change", "a", "b", true},
		{"the change again", "a", "b", false},
		{"back", "b", "a", true},
		{"a prefix of what is there", "a", "abc", true},
		{"shorter than what is there", "a", "x", false},
		{"removal of another value", "a", "", false},
		{"removal", "abc", "", true},
		{"removal again", "abc", "", false},
		{"change of a removed row", "abc", "d", false},
		{"first after the removal", "", "abc", true},
	} {
		equal(e, "swap: "+c.name, e.swap(table, "row", c.old, c.next), c.want)
		if c.want {
			current = c.next
		}
		e.wantValue("the row after "+c.name, table, "row", current)
	}
	e.wantValue("another row", table, "row 2", "")
	e.wantValue("the row of another table", e.name("table 2"), "row", "")
}

// rowValues are values that must come back byte by byte.
func rowValues() []string {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	large := bytes.Repeat(all, driver.MaxValueBytes/256)
	return []string{
		"\x00", " ", "a ", " a", "a\n", "\r\n", "null", "0", "0.10", `{"b": 1.0,  "a": 9007199254740993}`, `{"a":9007199254740993,"b":1.0}`,
		`'";--`, `\x00`, `\`, "%s$1?", "a\u0301", "\u00e1", "\xff\xfe", string(all), string(large), "\xef\xbb\xbfa", "\x00\x00", "\x1f\x8b",
	}
}

// checkRowValues: values are bytes, and are compared as bytes.
func checkRowValues(e *env) {
	table := e.name("table")
	values := rowValues()
	for i, v := range values {
		name := fmt.Sprint(i)
		equal(e, "the first swap of a row", e.swap(table, name, "", v), true)
		e.wantValue("the row", table, name, v)
		equal(e, "a swap that expects another value", e.swap(table, name, values[(i+1)%len(values)], "x"), false)
	}
	previous := "first"
	e.swap(table, "changing", "", previous)
	for _, v := range values {
		equal(e, "the swap to a value", e.swap(table, "changing", previous, v), true)
		previous = v
	}
	e.wantValue("the last value", table, "changing", previous)
	rows, err := e.rows.ListRows(e.ctx, table, "", 100)
	e.must(err)
	equal(e, "the number of rows", len(rows), len(values)+1)
	for _, r := range rows {
		e.wantValue("a listed row", table, r.Name, string(r.Value))
	}
}

// checkRowNames: every valid name is a row, and a table, of its own.
func checkRowNames(e *env) {
	names := []string{strings.Repeat("x", driver.MaxNameBytes), strings.Repeat("🂡", driver.MaxNameBytes/4), ".", "..", "/", " ", "%"}
	names = append(names, oddNames...)
	for _, name := range names {
		equal(e, "the first swap of row "+name, e.swap(e.name("table"), name, "", "row "+name), true)
	}
	for _, name := range names {
		e.wantValue("the row "+name, e.name("table"), name, "row "+name)
	}
	tables := []string{e.name(strings.Repeat("x", driver.MaxTableBytes-len(e.prefix)))}
	for _, odd := range oddNames {
		tables = append(tables, e.name(odd))
	}
	for _, table := range tables {
		equal(e, "the first swap in table "+table, e.swap(table, "row", "", "of "+table), true)
	}
	for _, table := range tables {
		rows, err := e.rows.ListRows(e.ctx, table, "", 10)
		e.must(err)
		if len(rows) != 1 || rows[0].Name != "row" || string(rows[0].Value) != "of "+table {
			e.Errorf("table %q has the rows %.300q; want one", table, rows)
		}
	}
}

// listRows returns a table's rows, read in pages.
func (e *env) listRows(table string, limit int) []driver.Row {
	e.Helper()
	var all []driver.Row
	for after := ""; ; {
		page, err := e.rows.ListRows(e.ctx, table, after, limit)
		e.must(err)
		if len(page) > limit {
			e.Fatalf("a page of %d rows; the limit is %d", len(page), limit)
		}
		all = append(all, page...)
		if len(page) < limit {
			return all
		}
		if next := page[len(page)-1].Name; next <= after {
			e.Fatalf("row %q comes after %q", next, after)
		} else {
			after = next
		}
	}
}

// checkRowList: pages of any size give the same rows, in the byte order of their
// names.
func checkRowList(e *env) {
	table := e.name("table")
	for _, other := range []string{"tabl", "table/", "table/a", "table ", "Table"} {
		e.swap(e.name(other), "a", "", "of another table")
	}
	var want []string
	for i, odd := range oddNames {
		e.swap(table, odd, "", "value of "+odd)
		if i%5 == 0 {
			e.swap(table, odd, "value of "+odd, "")
			continue
		}
		want = append(want, odd)
	}
	slices.Sort(want)
	for _, limit := range []int{1, 7, len(want), 1000} {
		var got []string
		for _, r := range e.listRows(table, limit) {
			got = append(got, r.Name)
			equal(e, "a listed value", string(r.Value), "value of "+r.Name)
		}
		if !slices.Equal(got, want) {
			e.Errorf("in pages of %d: %q; want %q", limit, got, want)
		}
	}
	page, err := e.rows.ListRows(e.ctx, table, "", 0)
	e.must(err)
	equal(e, "the size of a page with limit 0", len(page), 0)
	page, err = e.rows.ListRows(e.ctx, table, "a.c", 1) // does not exist itself
	e.must(err)
	if len(page) != 1 || page[0].Name != want[slices.Index(want, "a..b")+2] {
		e.Errorf("one row after a.c: %q", page)
	}
	page, err = e.rows.ListRows(e.ctx, e.name("no table"), "", 10)
	e.must(err)
	equal(e, "the number of rows of a table that does not exist", len(page), 0)
}

// checkRowsRefused: bad arguments are refused and change nothing.
func checkRowsRefused(e *env) {
	table := e.name("table")
	e.swap(table, "row", "", "a")
	for _, c := range []struct {
		what        string
		table, name string
		old, next   []byte
	}{
		{"no table", "", "row", nil, []byte("a")},
		{"no name", table, "", nil, []byte("a")},
		{"a long table", strings.Repeat("x", driver.MaxTableBytes+1), "row", nil, []byte("a")},
		{"a long name", table, strings.Repeat("x", driver.MaxNameBytes+1), nil, []byte("a")},
		{"a control character", table, "a\x00", nil, []byte("a")},
		{"a name that is no text", table, "\xff", nil, []byte("a")},
		{"a large value", table, "row", []byte("a"), make([]byte, driver.MaxValueBytes+1)},
		{"an empty value", table, "row", []byte("a"), []byte{}},
		{"no change", table, "row", []byte("a"), []byte("a")},
		{"no row and none after", table, "row 2", nil, nil},
	} {
		_, err := e.rows.SwapRow(e.ctx, c.table, c.name, c.old, c.next)
		e.wantErr(c.what, err, hapax.ErrInvalidArgument)
		if v, ok := errors.AsType[*hapax.ValueError](err); !ok || v.Field == "" || v.Allowed == "" {
			e.Errorf("%s: error is %v; want a ValueError", c.what, err)
		}
	}
	e.wantValue("the row", table, "row", "a")
}

// checkSwapRace: of swaps from the same value at the same time one succeeds,
// also of those that create and remove the row.
func checkSwapRace(e *env) {
	handles := e.handles(6)
	table, old := e.name("table"), ""
	for range 6 {
		var won atomic.Int64
		var value atomic.Pointer[string]
		inParallel(e, handles, func(ctx context.Context, h roles) error {
			next := fmt.Sprint(rand.Uint64())
			if old != "" && rand.IntN(4) == 0 {
				next = ""
			}
			ok, err := h.rows.SwapRow(ctx, table, "row", valueOf(old), valueOf(next))
			if ok {
				won.Add(1)
				value.Store(&next)
			}
			return err
		})
		equal(e, "the number of swaps that succeeded", won.Load(), 1)
		if next := value.Load(); next != nil {
			old = *next
		}
		e.wantValue("the row", table, "row", old)
	}
}

// checkRowsStay: the next handle finds every row as the last one left it.
func checkRowsStay(e *env) {
	table := e.name("table")
	for i, v := range rowValues() {
		e.swap(table, fmt.Sprint(i), "", v)
	}
	e.swap(table, "0", "\x00", "")
	before := e.listRows(table, 5)
	e.reopen()
	after := e.listRows(table, 100)
	equal(e, "the number of rows", len(after), len(before))
	for i := range min(len(before), len(after)) {
		if before[i].Name != after[i].Name || !bytes.Equal(before[i].Value, after[i].Value) {
			e.Errorf("row %q is %.60q under the next handle; want %q with %.60q", after[i].Name, after[i].Value, before[i].Name, before[i].Value)
		}
	}
}
