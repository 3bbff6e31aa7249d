package postgresstore

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/sqlstore"
)

func TestURL(t *testing.T) {
	for _, c := range []struct {
		url   string
		field string // of the ValueError; "-": another error; empty: none
	}{
		{"postgres://u:p@h:1/db?sslmode=disable&prefix=x", ""},
		{"postgresql://h/db", ""},
		{"postgres://a:1,b:2/db?target_session_attrs=read-write", ""},
		{"postgres://h/db?prefix=" + strings.Repeat("a", 33), "prefix"},
		{"postgres://h/db?sslmode=perhaps", "store URL parameter sslmode"},
		{"redis://h", "scheme"},
		{"mysql://h/db", "scheme"},
		{"", "scheme"},
		{"postgres://u:s3cret@h:1/db?sslmode=perhaps", "store URL parameter sslmode"},
		{"postgres://u:s3cret@h:1/db?connect_timeout=x&sslpassword=s3cret", "-"},
	} {
		_, _, err := config(c.url, sqlstore.Options{})
		if c.field == "" && err == nil {
			continue
		}
		if c.field == "" || !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: error is %v", c.url, err)
			continue
		}
		if v, ok := errors.AsType[*hapax.ValueError](err); ok != (c.field != "-") || ok && v.Field != c.field {
			t.Errorf("%s: error is %v, want one about %q", c.url, err, c.field)
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error %q holds the password", err)
		}
	}
}

// A parameter that is almost one of a connection is named, with the one probably meant, and
// so is one that libpq alone has.
func TestMistypedParameters(t *testing.T) {
	for given, meant := range map[string]string{
		"sslmod=disable": "sslmode", "SSLMODE=disable": "sslmode", "ssl_mode=disable": "sslmode", "sslrootcrt=x": "sslrootcert", "prefx=a": "prefix",
		"conect_timeout=3": "connect_timeout", "target_session_attr=read-write": "target_session_attrs", "application_nam=x": "application_name",
		"searchpath=x": "search_path", "sslpasword=s3cret": "sslpassword", "keepalives=1": "", "load_balance_hosts=random": "",
	} {
		name, _, _ := strings.Cut(given, "=")
		err := CheckURL("postgres://u:s3cret@h/db?sslmode=disable&" + given)
		v, ok := errors.AsType[*hapax.ValueError](err)
		if !ok || v.Field != "store URL parameter" || v.Value != name || meant != "" && !strings.HasPrefix(v.Allowed, meant+", if that is meant; ") || !strings.Contains(v.Allowed, "sslmode") {
			t.Errorf("%s: %v; want it to mean %q", given, err, meant)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("the error %q holds the password", err)
		}
	}
}

// What pgx takes passes, and so does every setting of a session: any server knows its own.
func TestParametersPass(t *testing.T) {
	for _, query := range []string{
		"", "sslmode=disable&application_name=x&search_path=a,b&options=-c%20geqo%3Doff", "target_session_attrs=read-write&connect_timeout=3",
		"TimeZone=UTC&DateStyle=ISO&client_encoding=UTF8", "statement_timeout=5000&lock_timeout=1s&idle_in_transaction_session_timeout=9s",
		"default_query_exec_mode=exec&statement_cache_capacity=0&description_cache_capacity=1", "myapp.tenant=5", "prefix=a_", "role=writer", "replication=database",
		"min_protocol_version=3.0&channel_binding=prefer&require_auth=scram-sha-256&sslsni=1&sslnegotiation=postgres",
	} {
		if err := CheckURL("postgres://u:p@h/db?" + query); err != nil {
			t.Errorf("%s: %v", query, err)
		}
	}
	db, err := sql.Open("pgx", testservers.SharedPostgres(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), "SELECT name FROM pg_settings")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	settings := 0
	for ; rows.Next(); settings++ {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		if err := CheckURL("postgres://h/db?" + name + "=1"); err != nil && strings.Contains(err.Error(), "parameter") {
			t.Errorf("the server has a setting %s: %v", name, err)
		}
	}
	if err := rows.Err(); err != nil || settings < 200 {
		t.Errorf("%d settings, %v", settings, err)
	}
}
