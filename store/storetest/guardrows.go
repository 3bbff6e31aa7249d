package storetest

import (
	"bytes"
	"slices"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

func checkRowsNamed(e *env) {
	a, b := e.name("table"), e.name("table 2")
	e.swap(a, "x", "", "of the first")
	e.swap(b, "x", "", "of the second")
	e.swap(a, "z", "", "last")
	got, err := e.guarding.RowsNamed(e.ctx, driver.Key{Table: b, Name: "x"}, driver.Key{Table: a, Name: "y"}, driver.Key{Table: a, Name: "z"}, driver.Key{Table: a, Name: "x"})
	e.must(err)
	if want := [][]byte{[]byte("of the second"), nil, []byte("last"), []byte("of the first")}; !slices.EqualFunc(got, want, func(x, y []byte) bool { return (x == nil) == (y == nil) && bytes.Equal(x, y) }) {
		e.Errorf("the rows by name are %q; want %q", got, want)
	}
	if got, err = e.guarding.RowsNamed(e.ctx); len(got) > 0 || err != nil {
		e.Errorf("no rows by name are %q, %v", got, err)
	}
}

// checkSwapRows: rows are swapped together, and where one of them is another one, none is, but for
// those before it in a store that is split.
func checkSwapRows(e *env) {
	table, other := e.name("table"), e.name("table 2")
	swaps := func(all ...string) (swaps []driver.Swap) {
		for i := 0; i < len(all); i += 4 {
			swaps = append(swaps, driver.Swap{Key: driver.Key{Table: all[i], Name: all[i+1]}, Old: valueOf(all[i+2]), Next: valueOf(all[i+3])})
		}
		return swaps
	}
	for _, c := range []struct {
		name  string
		swaps []driver.Swap
		want  bool
		a, b  string // the rows after that
	}{
		{"of rows that are to be made", swaps(table, "a", "", "1", other, "b", "", "1"), true, "1", "1"},
		{"of rows that are there", swaps(table, "a", "1", "2", other, "b", "1", "2"), true, "2", "2"},
		{"where the first is another one", swaps(table, "a", "1", "3", other, "b", "2", "3"), false, "2", "2"},
		{"where the last is another one", swaps(other, "b", "2", "3", table, "a", "1", "3"), false, "2", "2"},
		{"where one is there already", swaps(other, "b", "2", "3", table, "a", "", "3"), false, "2", "2"},
		{"where the last is there already", swaps(table, "a", "2", "3", other, "b", "", "3"), false, "2", "2"},
		{"where one is not there", swaps(other, "b", "2", "3", table, "c", "1", "3"), false, "2", "2"},
		{"of which one is removed", swaps(table, "a", "2", "", other, "b", "2", "3"), true, "", "3"},
		{"of one", swaps(other, "b", "3", "4"), true, "", "4"},
		{"where another is as it was", swaps(other, "b", "4", "4", table, "a", "", "5"), true, "5", "4"},
		{"where another is not there", swaps(table, "c", "", "", table, "a", "5", ""), true, "", "4"},
		{"where another is not what it was", swaps(other, "b", "3", "3", table, "a", "", "5"), false, "", "4"},
		{"where another is there", swaps(other, "b", "", "", table, "a", "", "5"), false, "", "4"},
	} {
		ok, err := e.guarding.SwapRows(e.ctx, c.swaps...)
		e.must(err)
		equal(e, "a swap "+c.name, ok, c.want)
		if e.guarding.Split() && !c.want {
			e.restore(other, "b", c.b)
		}
		e.wantValue("the first row after a swap "+c.name, table, "a", c.a)
		e.wantValue("the second row after a swap "+c.name, other, "b", c.b)
		e.wantValue("a third row after a swap "+c.name, table, "c", "")
	}
	e.swap(table, "a", "", "by another call") // what the handle knows of it is older
	if ok, err := e.guarding.SwapRows(e.ctx, swaps(table, "a", "by another call", "1", other, "b", "4", "5")...); !ok || err != nil {
		e.Errorf("a swap after another one is %v, %v", ok, err)
	}
	_, err := e.guarding.SwapRows(e.ctx, swaps(table, "a", "1", "2", table, "a", "2", "3")...)
	e.wantErr("a swap that names a row twice", err, hapax.ErrInvalidArgument)
}

// restore sees to it that a row has a value.
func (e *env) restore(table, name, want string) {
	e.Helper()
	now, err := e.rows.Row(e.ctx, table, name)
	e.must(err)
	if string(now) != want {
		e.swap(table, name, string(now), want)
	}
}
