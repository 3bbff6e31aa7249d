package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// machineOf asks one of Vesta's addresses for a number until it gives one, and returns the
// number's machine.
func machineOf(t *testing.T, at string) int64 {
	t.Helper()
	id := ""
	patience.Until(t, at+" issues", func() (ok bool) {
		var status int
		status, id = answers(t, "http://"+at+"/genid")
		return status == http.StatusOK
	})
	_, body := answers(t, "http://"+at+"/expid?id="+id)
	var fields struct{ Machine int64 }
	if err := json.Unmarshal([]byte(body), &fields); err != nil {
		t.Fatalf("%s is %s: %v", id, body, err)
	}
	return fields.Machine
}

// Three servers of one host with machine IDs from Vesta's table, which are killed and
// started again in another order, have their own rows again, so that none of them waits for
// another one's: the log tells how long it may wait for its own.
func TestVestaTableAfterACrash(t *testing.T) {
	t.Parallel()
	db := newForeignDB(t, testservers.SharedMariaDB(t), "CREATE TABLE DB_MACHINE_ID_PROVIDER (ID BIGINT NOT NULL PRIMARY KEY, IP VARCHAR(64) NULL UNIQUE)",
		"INSERT INTO DB_MACHINE_ID_PROVIDER (ID) VALUES (0), (1), (2), (3), (4)")
	temporary := []string{"TMPDIR=" + t.TempDir()} // where the processes of a host see each other's locks
	dirs, had := map[string]string{}, map[string]int64{}
	serveAt := func(name string) (*serving, string) {
		if dirs[name] == "" {
			dirs[name] = t.TempDir()
		}
		at := freeAddress(t)
		return serve(t, dirs[name], temporary, "--compat", fmt.Sprintf("{vesta: {table: %q, http: %q}}", db.url, at)), at
	}
	var all []*serving
	for _, name := range []string{"a", "b", "c"} {
		s, at := serveAt(name)
		had[name], all = machineOf(t, at), append(all, s)
	}
	if had["a"] == had["b"] || had["b"] == had["c"] || had["a"] == had["c"] {
		t.Fatalf("the machine IDs are %v", had)
	}
	for _, s := range all {
		s.kill()
	}
	again, addresses := map[string]*serving{}, map[string]string{}
	for _, name := range []string{"c", "a", "b"} {
		again[name], addresses[name] = serveAt(name)
	}
	for name, s := range again {
		if machine := machineOf(t, addresses[name]); machine != had[name] {
			t.Errorf("%s is machine %d; want %d, as before", name, machine, had[name])
		}
		s.await(`"waits_after_a_crash_up_to":"20s"`) // a number may come before its line of the log
	}
}
