package e2e

import (
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// TestForeignTables runs against one server; each part has databases of its own.
func TestForeignTables(t *testing.T) {
	t.Parallel()
	server := testservers.SharedMariaDB(t)
	for name, test := range map[string]func(*testing.T, *testservers.Server){
		"Leaf":                      testLeafTable,
		"Leaf beside its nodes":     testLeafBesideItsNodes,
		"Leaf's table set back":     testLeafTableSetBack,
		"import of Leaf":            testImportLeaf,
		"TinyID":                    testTinyIDTables,
		"TinyID beside its servers": testTinyIDBesideItsServers,
		"import of TinyID":          testImportTinyID,
		"page on Leaf":              testLeafPage,
		"page on TinyID":            testTinyIDPage,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, server)
		})
	}
}

// A foreignDB is a database of a foreign system.
type foreignDB struct {
	*sql.DB
	t               *testing.T
	url, host, name string
}

// newForeignDB makes a database and runs statements in it.
func newForeignDB(t *testing.T, server *testservers.Server, statements ...string) foreignDB {
	t.Helper()
	db := testdb.New(t, server, statements...)
	db.SetMaxIdleConns(0) // another session in the database is a sign of life
	at, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	return foreignDB{db.DB, t, db.URL, at.Host, db.Name}
}

func (d foreignDB) run(statements ...string) {
	d.t.Helper()
	for _, s := range statements {
		if _, err := d.ExecContext(d.t.Context(), s); err != nil {
			d.t.Fatalf("%s: %v", s, err)
		}
	}
}

func (d foreignDB) number(query string) int64 {
	d.t.Helper()
	var n int64
	if err := d.QueryRowContext(d.t.Context(), query).Scan(&n); err != nil {
		d.t.Fatalf("%s: %v", query, err)
	}
	return n
}

// fetch returns what a route answers, which may fail while the server is down.
func fetch(t *testing.T, method, url string) (int, string, error) {
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}

// answers returns what a route answers that must.
func answers(t *testing.T, url string) (int, string) {
	t.Helper()
	status, body, err := fetch(t, http.MethodGet, url)
	if err != nil {
		t.Fatal(err)
	}
	return status, body
}

// A takenSet is numbers that several callers were given.
type takenSet struct {
	mu  sync.Mutex // guards the fields below
	ids map[int64]string
	dup []string
}

func (s *takenSet) take(by string, ids ...int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids == nil {
		s.ids = map[int64]string{}
	}
	for _, id := range ids {
		if other, ok := s.ids[id]; ok {
			s.dup = append(s.dup, fmt.Sprintf("%d by %s and by %s", id, other, by))
		}
		s.ids[id] = by
	}
}

func (s *takenSet) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids)
}

// askFor asks a route for numbers until it has so many. While the server is killed and
// started it asks again.
func (s *takenSet) askFor(t *testing.T, by, url string, want int) {
	over := time.Now().Add(2 * patience.Long)
	for got := 0; got < want && !t.Failed(); {
		status, body, err := fetch(t, http.MethodPost, url)
		if err != nil && time.Now().Before(over) {
			patience.Again()
			continue
		}
		for text := range strings.SplitSeq(body, ",") {
			id, notNumber := strconv.ParseInt(text, 10, 64)
			if err != nil || status != http.StatusOK || notNumber != nil {
				t.Errorf("%s: %d %q, %v", url, status, body, err)
				return
			}
			s.take(by, id)
			got++
		}
	}
}
