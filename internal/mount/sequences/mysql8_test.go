package sequences

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/compat/sequences"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

// A real MySQL 8 keeps for a day what its views told of a counter, which reading does not
// believe; a move shuts the tables, can be repeated, and goes back.
func TestMySQL8(t *testing.T) {
	server := testservers.MySQL8(t)
	address, db := newMariaDB(t, server)
	do(t, db, "CREATE TABLE customers (id BIGINT AUTO_INCREMENT PRIMARY KEY, name TEXT)", "CREATE TABLE orders (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, name TEXT)",
		"CREATE TABLE small (id INT AUTO_INCREMENT PRIMARY KEY)", "CREATE TABLE unfed (id INT PRIMARY KEY)",
		"CREATE TABLE hibernate_sequences (sequence_name VARCHAR(100) PRIMARY KEY, next_val BIGINT)", "INSERT INTO hibernate_sequences VALUES ('unfed', 301)",
		"INSERT INTO customers (name) VALUES ('a')", "ANALYZE TABLE customers, orders, small")
	if n := number(t, db, "SELECT AUTO_INCREMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'customers'"); n > 2 {
		t.Fatalf("the counter begins at %d", n)
	}
	for range 40 {
		do(t, db, "INSERT INTO customers (name) VALUES ('b')")
	}
	do(t, db, "DELETE FROM customers", "INSERT INTO orders VALUES (900, 'c')")
	if n := number(t, db, "SELECT AUTO_INCREMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'customers'"); n > 2 {
		t.Fatalf("this server tells %d at once, so that nothing is shown here: it is to be one that keeps statistics of tables (MySQL 8)", n)
	}
	m := read(t, importing{}, address)
	for tag, highest := range map[string]int64{"customers": 41, "orders": 900, "small": 0, "unfed": 351} {
		if s := m.source(t, tag); s.Highest != highest || len(s.Wrong) > 0 {
			t.Errorf("%s is at %d, want %d: %q", tag, s.Highest, highest, s.Wrong)
		}
	}
	store, i := memstore.New(), importing{}
	for range 2 {
		for tag, done := range apply(t, read(t, i, address), store, mount.MoveOptions{Apply: true}) {
			if done.Reason != nil {
				t.Errorf("%s: %v", tag, done.Reason)
			}
		}
	}
	for _, statement := range []string{"INSERT INTO customers (name) VALUES ('d')", "INSERT INTO small VALUES ()", "UPDATE hibernate_sequences SET next_val = next_val + 50"} {
		if _, err := db.ExecContext(t.Context(), statement); err == nil || !strings.Contains(err.Error(), "come from hapax") {
			t.Errorf("%s: %v", statement, err)
		}
	}
	a, err := store.Allocate(t.Context(), "customers", 10, "")
	if err != nil || a.Grant.Lo != 1042 {
		t.Fatal(a.Grant, err)
	}
	do(t, db, fmt.Sprintf("INSERT INTO customers VALUES (%d, 'e')", a.Grant.Lo))
	verdicts, err := read(t, i, address).Verify(t.Context(), store)
	if err != nil || len(verdicts) != 4 {
		t.Errorf("verified: %+v, %v", verdicts, err)
	}
	for _, v := range verdicts {
		if len(v.Wrong) > 0 {
			t.Errorf("verified: %+v", v)
		}
	}
	do(t, db, fmt.Sprintf("INSERT INTO orders VALUES (%d, 'from elsewhere')", 905))
	for _, v := range must(read(t, i, address).Verify(t.Context(), store)) {
		if wrong := strings.Join(v.Wrong, "; "); (wrong != "") != (v.Tag == "orders") || v.Tag == "orders" && !strings.Contains(wrong, "shut at 900 and is at 905") {
			t.Errorf("verified after a row from elsewhere: %+v", v)
		}
	}
	apply(t, read(t, i, address), store, mount.MoveOptions{Undo: true, Apply: true})
	do(t, db, "INSERT INTO customers (name) VALUES ('f')", "INSERT INTO small VALUES ()", "UPDATE hibernate_sequences SET next_val = next_val + 50")
	if n := number(t, db, "SELECT MAX(id) FROM customers"); n < a.Grant.Hi {
		t.Errorf("the table goes on with %d after %d", n, a.Grant.Hi)
	}
	if _, err := sequences.Scan(t.Context(), address, "customers", "id", sequences.ScanOptions{}); err != nil {
		t.Error(err)
	}
}
