package sqlstore_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/sqlstore"
)

// jitAbove is the cost above which PostgreSQL compiles a plan (jit_above_cost): a tenth of a
// second of a processor, on each connection anew.
const jitAbove = 100_000

var parameters = regexp.MustCompile(`\$\d+`)

// No statement is so dear that PostgreSQL compiles it; each finds its rows by their keys.
func TestNoStatementIsCompiled(t *testing.T) {
	t.Parallel()
	s := open(t, fresh(testservers.SharedPostgres(t).URL), sqlstore.Options{})
	err := s.Session(t.Context(), func(ctx context.Context, c *sql.Conn) error {
		if cost, err := costOf(ctx, c, "SELECT value FROM "+prefixOf(urlOf(t, s))+"rows"); err != nil || cost < jitAbove {
			t.Errorf("a query without a key costs %v, %v: what is this to find?", cost, err)
		}
		looked := 0
		all := s.Statements()
		for _, name := range slices.Sorted(maps.Keys(all)) {
			cost, err := costOf(ctx, c, all[name])
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, all[name])
			}
			if cost >= jitAbove {
				t.Errorf("%s costs %v\n%s", name, cost, all[name])
			}
			looked++
		}
		if looked < 25 {
			t.Errorf("only %d statements were looked at", looked)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// costOf returns what the server takes a query to cost, whatever its arguments are.
func costOf(ctx context.Context, c *sql.Conn, query string) (cost float64, err error) {
	const name = "hapax_cost"
	if _, err := c.ExecContext(ctx, "PREPARE "+name+" AS "+query); err != nil {
		return 0, err
	}
	defer func() { _, _ = c.ExecContext(ctx, "DEALLOCATE "+name) }()
	arguments := ""
	if n := len(slices.Compact(slices.Sorted(slices.Values(parameters.FindAllString(query, -1))))); n > 0 {
		arguments = "(NULL" + strings.Repeat(", NULL", n-1) + ")"
	}
	var text string
	if _, err := c.ExecContext(ctx, "SET plan_cache_mode = force_generic_plan"); err != nil {
		return 0, err
	}
	if err := c.QueryRowContext(ctx, "EXPLAIN (FORMAT JSON) EXECUTE "+name+arguments).Scan(&text); err != nil {
		return 0, err
	}
	var plans []struct {
		Plan struct {
			Total float64 `json:"Total Cost"`
		}
	}
	if err := json.Unmarshal([]byte(text), &plans); err != nil || len(plans) != 1 {
		return 0, fmt.Errorf("%w in %s", err, text)
	}
	return plans[0].Plan.Total, nil
}
