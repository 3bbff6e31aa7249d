package sequences

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

// hibernateVariable has the path of the class that make clients compiles; the test needs
// Maven Central.
const hibernateVariable = "HAPAX_TEST_HIBERNATE"

// A hibernate is a program with Hibernate that writes rows.
type hibernate struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Scanner
	err *strings.Builder
}

// newHibernate starts testdata/hibernate/Shop.java on a database.
func newHibernate(t *testing.T, address string) *hibernate {
	t.Helper()
	classes := os.Getenv(hibernateVariable)
	if classes == "" {
		t.Skipf("needs %s: clients/java/check sets it, which make clients runs", hibernateVariable)
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	scheme := map[string]string{"postgres": "jdbc:postgresql://", "mysql": "jdbc:mariadb://"}[u.Scheme]
	password, _ := u.User.Password()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "java", "-XX:TieredStopAtLevel=1", "-cp", classes, "Shop", scheme+u.Host+u.Path, u.User.Username(), password)
	h := &hibernate{t: t, err: new(strings.Builder)}
	cmd.Stderr = h.err
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.in, h.out = in, bufio.NewScanner(out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	for h.out.Scan() && h.out.Text() != "ready" {
	}
	return h
}

// persist writes rows, and returns their numbers, and why there are no more.
func (h *hibernate) persist(entity string, n int) (numbers []int64, refused string) {
	h.t.Helper()
	fmt.Fprintf(h.in, "%s %d\n", entity, n)
	if !h.out.Scan() {
		h.t.Fatalf("the program has ended: %s", h.err)
	}
	text := h.out.Text()
	if rest, ok := strings.CutPrefix(text, "refused: "); ok {
		refused, text, _ = strings.Cut(rest, " after ")
	}
	for word := range strings.FieldsSeq(text) {
		number, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			h.t.Fatalf("%s: %s", entity, h.out.Text())
		}
		numbers = append(numbers, number)
	}
	return numbers, refused
}

// The numbers that two programs with a real Hibernate hold in memory, of a table of
// generators and of a sequence, stay below the first of the tag: they go on with those, then
// are refused, and no number comes twice.
func TestHibernate(t *testing.T) {
	for name, newDB := range map[string]func(*testing.T) (string, *sql.DB){
		"postgres": newPostgres,
		"mariadb": func(t *testing.T) (string, *sql.DB) {
			return newMariaDB(t, testservers.SharedMariaDB(t))
		},
	} {
		t.Run(name, func(t *testing.T) {
			address, db := newDB(t)
			programs := []*hibernate{newHibernate(t, address), newHibernate(t, address)}
			var all []int64
			for _, entity := range []string{"invoices", "parcels"} {
				all = all[:0]
				for k, h := range programs { // each is somewhere in an allocation of its own
					numbers, refused := h.persist(entity, 57+30*k)
					if refused != "" {
						t.Fatal(refused)
					}
					all = append(all, numbers...)
				}
				i := importing{like: entity, feeds: []string{"parcels_seq=parcels.id"}}
				m := read(t, i, address)
				s := m.source(t, entity)
				if most := slices.Max(all); s.Highest < most || s.Highest > most+250 || len(s.Feeds) != 1 || len(s.Wrong) > 0 {
					t.Errorf("%s: read is %+v; the programs are at %d", entity, s, most)
				}
				store := memstore.New()
				done := apply(t, m, store, mount.MoveOptions{Apply: true, Margin: 1})
				if r := done[entity].Reason; r != nil {
					t.Fatal(r)
				}
				for _, h := range programs {
					numbers, refused := h.persist(entity, 200)
					if refused == "" || len(numbers) > 100 {
						t.Errorf("%s: a program goes on with %d numbers", entity, len(numbers))
					}
					t.Logf("%s: %d more rows, then: %s", entity, len(numbers), refused)
					all = append(all, numbers...)
				}
				if most := slices.Max(all); most >= done[entity].After {
					t.Errorf("%s: a program used %d, and the tag begins at %d", entity, most, done[entity].After)
				}
				if n := number(t, db, "SELECT COUNT(*) - COUNT(DISTINCT id) FROM "+entity); n > 0 || len(all) != int(number(t, db, "SELECT COUNT(*) FROM "+entity)) {
					t.Errorf("%s: %d numbers are there twice, of %d rows", entity, n, len(all))
				}
				verdicts, err := read(t, i, address).Verify(t.Context(), store)
				if err != nil || len(verdicts) != 1 || len(verdicts[0].Wrong) > 0 {
					t.Errorf("verified: %+v, %v", verdicts, err)
				}

				// And back: the programs go on above what was issued from the tag.
				a, err := store.Allocate(t.Context(), entity, 500, "")
				if err != nil {
					t.Fatal(err)
				}
				apply(t, read(t, i, address), store, mount.MoveOptions{Undo: true, Apply: true})
				for _, h := range programs {
					numbers, refused := h.persist(entity, 200)
					for refused != "" { // what it held when it was refused
						t.Fatalf("%s: opened again, and %s", entity, refused)
					}
					if low := slices.Min(numbers); low < a.Grant.Hi {
						t.Errorf("%s: a program goes on with %d, and the tag had issued up to %d", entity, low, a.Grant.Hi)
					}
				}
			}
		})
	}
}
