package zkstore

import (
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/driver"
)

// TestBulk: many nodes are read by requests for many, page by page, and what they hold is
// what requests for one each tell; those that come or go between two pages are noticed.
func TestBulk(t *testing.T) {
	s, err := Open(t.Context(), testservers.SharedZooKeeper(t).URL+"/"+rand.Text(), Options{Timeout: patience.Call})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const rows = bulkNodes + 100
	name := func(i int) string { return fmt.Sprintf("%04d/é", i) }
	write := func(i int, old, next []byte) {
		if ok, err := s.SwapRow(t.Context(), "t", name(i), old, next); !ok || err != nil {
			t.Errorf("row %d: %v, %v", i, ok, err)
		}
	}
	write(0, nil, []byte("first"))
	var wg sync.WaitGroup
	for worker := range listBranch {
		wg.Go(func() {
			for i := 1 + worker; i < rows; i += listBranch {
				write(i, nil, fmt.Append(nil, "value ", i))
			}
		})
	}
	wg.Wait()
	l, err := s.space.current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list := func(after string, limit int) (names, values []string) {
		rows, err := s.space.Scan(t.Context(), "t", after, limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			names, values = append(names, row.Name), append(values, string(row.Value))
		}
		return names, values
	}
	names, values := list("", rows+1)
	if len(names) != rows || values[0] != "first" || values[rows-1] != fmt.Sprint("value ", rows-1) || !slices.IsSorted(names) {
		t.Errorf("%d rows, the first %.20q, the last %.20q", len(names), values[0], values[rows-1])
	}
	if l.oneByOne.Load() {
		t.Error("the server has refused to tell many nodes at once")
	}
	l.oneByOne.Store(true)
	if again, single := list("", rows+1); !slices.Equal(again, names) || !slices.Equal(single, values) {
		t.Error("one by one the nodes hold something else")
	}
	l.oneByOne.Store(false)

	page, _ := list("", bulkFrom)
	write(rows-1, fmt.Append(nil, "value ", rows-1), nil)
	write(rows, nil, []byte("late"))
	rest, last := list(page[len(page)-1], rows)
	if len(rest) != rows-bulkFrom || rest[len(rest)-1] != name(rows) || last[len(last)-1] != "late" {
		t.Errorf("the second page has %d rows, the last is %.20q", len(rest), rest[len(rest)-1])
	}
	raws, err := s.space.readMany(t.Context(), l, s.space.dir("t"), []string{name(1), name(rows - 1), name(rows)})
	if err != nil || string(raws[0]) != "value 1" || raws[1] != nil || string(raws[2]) != "late" {
		t.Errorf("read %q, error %v", raws, err)
	}
	if _, err := s.space.readMany(t.Context(), l, s.space.node(driver.Key{Table: "no such table"}), []string{"x"}); err != nil {
		t.Errorf("a table that there is not: %v", err)
	}
}

// FuzzBulk: whatever a server answers is refused or understood.
func FuzzBulk(f *testing.F) {
	f.Add([]byte{0, 0, 0, 4, 0, 255, 255, 255, 255, 0, 0, 0, 1, 'x'})
	f.Add([]byte{255, 255, 255, 255, 0, 255, 255, 255, 155, 255, 255, 255, 155, 255, 255, 255, 255, 1, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, reply []byte) {
		raws := make([][]byte, 2)
		if err := parseBulk(reply, raws); err == nil && len(reply) < 2*9 {
			t.Errorf("%d bytes are no answer for two nodes", len(reply))
		}
	})
}
