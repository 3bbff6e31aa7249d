package server

import (
	"database/sql"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/sqlstore/mysqlstore"
)

// Doctor tells of a missing right as the server would: before there is a store, and where there is
// one. It tells nothing of a user with all rights.
func TestDoctorTriesTheRights(t *testing.T) {
	const tables = "SELECT, INSERT, UPDATE, DELETE"
	for _, engine := range []string{"mysql", "postgres"} {
		t.Run(engine, func(t *testing.T) {
			db, as := rightsRig(t, engine)
			judge := func(when, missing, user string) {
				t.Helper()
				c := DefaultConfig()
				c.Data, c.Store, c.HTTP, c.RESP = t.TempDir(), as(user), "127.0.0.1:0", ""
				found, err := Examine(t.Context(), c)
				if err != nil {
					t.Fatalf("%s: %v", when, err)
				}
				i := slices.IndexFunc(found, func(d Diagnosis) bool { return d.Part == "store" && d.Harm == HarmDanger })
				switch {
				case missing == "" && i >= 0:
					t.Errorf("%s: found %+v", when, found[i])
				case missing != "" && (i < 0 || !strings.Contains(found[i].Detail, noRight) || !strings.Contains(found[i].Detail, missing)):
					t.Errorf("%s: found %+v; want a lack of the right %q", when, found, missing)
				}
			}
			mysql := engine == "mysql"
			denied := func(right, table string) string {
				if mysql {
					return right + " command denied"
				}
				return "permission denied for " + table
			}
			judge("no store, and only SELECT", denied("INSERT", "schema"), "reader")
			judge("no store, and all rights", "", "owner")
			c := DefaultConfig()
			c.Data, c.Store = t.TempDir(), as("owner")
			store, err := newOpener(c, slog.New(slog.DiscardHandler)).open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
			for user, rights := range map[string]string{"reader": "SELECT", "writer": "SELECT, INSERT, UPDATE", "whole": tables} {
				for _, table := range []string{"hapax_meta", "hapax_rows"} {
					grant(t, db, engine, rights, table, user)
				}
			}
			judge("a store, and only SELECT", denied("INSERT", "table hapax_meta"), "reader")
			judge("a store, and no DELETE", denied("DELETE", "table hapax_rows"), "writer")
			judge("a store, and all that it needs", "", "whole")
			judge("a store, and all rights", "", "owner")
		})
	}
}

func grant(t *testing.T, db *sql.DB, engine, rights, table, user string) {
	t.Helper()
	name := "hapax_rights_" + user
	if engine == "mysql" {
		name = "'" + name + "'@'%'"
	}
	if _, err := db.ExecContext(t.Context(), fmt.Sprintf("GRANT %s ON %s TO %s", rights, table, name)); err != nil {
		t.Fatal(err)
	}
}

// rightsRig makes a database with the users owner, reader, writer and whole.
func rightsRig(t *testing.T, engine string) (db *sql.DB, as func(user string) string) {
	t.Helper()
	exec := func(db *sql.DB, statements ...string) {
		t.Helper()
		for _, s := range statements {
			if _, err := db.ExecContext(t.Context(), s); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
		}
	}
	users := []string{"owner", "reader", "writer", "whole"}
	server, open, scheme := testservers.SharedMariaDB, mysqlstore.OpenDB, "mysql"
	if engine == "postgres" {
		server, scheme = testservers.SharedPostgres, "postgres"
		open = func(url string) (*sql.DB, error) { return sql.Open("pgx", url) }
	}
	base := server(t).URL
	root, err := open(base)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	exec(root, "DROP DATABASE IF EXISTS hapax_rights", "CREATE DATABASE hapax_rights")
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	u.Scheme, u.Path = scheme, "/hapax_rights"
	if db, err = open(u.String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for _, user := range users {
		if engine == "postgres" {
			exec(db, "DROP ROLE IF EXISTS hapax_rights_"+user, "CREATE ROLE hapax_rights_"+user+" LOGIN")
			continue
		}
		exec(db, "DROP USER IF EXISTS hapax_rights_"+user, "CREATE USER hapax_rights_"+user)
	}
	if engine == "postgres" {
		exec(db, "GRANT ALL ON SCHEMA public TO hapax_rights_owner")
	} else {
		exec(db, "GRANT ALL ON hapax_rights.* TO hapax_rights_owner", "GRANT SELECT ON hapax_rights.* TO hapax_rights_reader")
	}
	return db, func(user string) string {
		own := *u
		own.User = url.User("hapax_rights_" + user)
		return own.String()
	}
}
