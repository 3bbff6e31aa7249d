package codec

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
	_ "github.com/jackc/pgx/v5/stdlib"
)

const codesDir = "../examples/codes"

func readVectors(t *testing.T) vectors {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "vectors.json"))
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// comparisons returns how many answers a program has to compare.
func (v vectors) comparisons() int {
	n := len(v.Alphabets) + len(v.Checks) + len(v.Refused)
	for _, m := range v.Mixers {
		n += 2 * len(m.Pairs)
	}
	for _, c := range v.Codes {
		n += 2 * len(c.Cases)
	}
	return n
}

// TestLanguages has Python and Node.js compare the committed vectors, and so many
// coupons more as each can do in a second or two.
func TestLanguages(t *testing.T) {
	committed := readVectors(t)
	for _, tt := range []struct {
		name, program, script string
		coupons               int
	}{
		{"Python", "python3", "check_vectors.py", 200},
		{"Node.js", "node", "check-vectors.js", 10_000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bin, err := exec.LookPath(tt.program)
			if err != nil {
				testservers.Missing(t, tt.program+" is not installed")
			}
			v := committed
			v.Codes = append(slices.Clip(v.Codes), coupons(t, tt.coupons))
			text, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "vectors.json")
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), bin, tt.script, path)
			cmd.Dir = codesDir
			cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
			out, err := cmd.CombinedOutput()
			if got, want := strings.TrimSpace(string(out)), strconv.Itoa(v.comparisons()); err != nil || got != want {
				t.Errorf("%v, %s; want %s comparisons", err, got, want)
			}
		})
	}
}

func coupons(t *testing.T, count int) codeVector {
	const spec = "{id:8:crockford32:feistel=k1:group=4}{check}"
	c, err := Parse(spec, Options{Tag: "coupons", Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	v := codeVector{Spec: spec, Tag: "coupons"}
	random := rand.New(rand.NewPCG(8, 32))
	for range count {
		id := toID(random.IntN(1_000_000))
		v.Cases = append(v.Cases, codeCase{"", id.String(), mustAppend(t, c, Period{}, id)})
	}
	return v
}

// TestPostgres compares the functions for PostgreSQL with the committed vectors,
// as far as they need no key.
func TestPostgres(t *testing.T) {
	server := testservers.SharedPostgres(t)
	db, err := sql.Open("pgx", server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // the search path is the connection's
	functions, err := os.ReadFile(filepath.Join(codesDir, "hapax_codes.sql"))
	if err != nil {
		t.Fatal(err)
	}
	// A schema of their own keeps a server that exists already as it is.
	schema := fmt.Sprintf("hapax_codes_%d", os.Getpid())
	if _, err := db.Exec("CREATE SCHEMA " + schema + "; SET search_path TO " + schema + ";" + string(functions)); err != nil {
		t.Fatal(err)
	}
	defer db.Exec("DROP SCHEMA " + schema + " CASCADE")
	compared := 0
	same := func(what, want any, query string, args ...any) {
		t.Helper()
		var got string
		if err := db.QueryRow("SELECT ("+query+")::text", args...).Scan(&got); err != nil || got != want {
			t.Errorf("%v: %s of %v is %q, %v, want %v", what, query, args, got, err, want)
		}
		compared++
	}
	v := readVectors(t)
	for _, c := range v.Checks {
		same(c.Name, strconv.Itoa(c.Sum), "hapax_check($1, $2::int[], $3)", c.Name, intArray(c.Values), c.Size)
	}
	for _, m := range v.Mixers {
		for _, p := range m.Pairs {
			switch m.Name {
			case "multiply":
				same(m.N, p[1], "hapax_multiply($1::bigint, $2::numeric)", p[0], m.N)
				same(m.N, p[0], "hapax_unmultiply($1::bigint, $2::numeric)", p[1], m.N)
			case "reverse":
				same(m.N, p[1], "hapax_reverse($1::bigint, log(2, $2::numeric)::int)", p[0], m.N)
			}
		}
	}
	for _, c := range v.Codes {
		switch c.Spec {
		case "{id:6}", "{id:19}", "{id:13:crockford32}", "{id:8:16}", "{id:63:=01}", "{id:5:=ab-}":
		default:
			continue
		}
		n := mustParse(t, c.Spec).number
		for _, tt := range c.Cases {
			same(c.Spec, tt.Text, "hapax_encode($1::bigint, $2, $3)", tt.Number, n.bands[0].width, n.alphabet.chars)
			same(c.Spec, tt.Number, "hapax_decode($1, $2)", tt.Text, n.alphabet.chars)
		}
	}
	if compared < 500 {
		t.Errorf("only %d comparisons", compared)
	}
	for _, query := range []string{
		"SELECT hapax_encode(1000, 3, '0123456789')", "SELECT hapax_encode(-1, 3, '0123456789')",
		"SELECT hapax_decode('12x', '0123456789')", "SELECT hapax_decode('9223372036854775808', '0123456789')",
	} {
		if _, err := db.Exec(query); err == nil {
			t.Errorf("%s succeeds", query)
		}
	}
}

func intArray(values []int) string {
	text := make([]string, len(values))
	for i, v := range values {
		text[i] = strconv.Itoa(v)
	}
	return "{" + strings.Join(text, ",") + "}"
}
