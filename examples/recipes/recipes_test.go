// Package recipes has a program for each of several ORMs, which the test here runs on a
// real database.
package recipes

import (
	"bufio"
	"database/sql"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// rows is how many rows a process inserts one by one, and how many together.
const rows = 150

// recipes tell where each of them is, what runs it, and how many rows a process inserts
// with its children.
var recipes = map[string]struct {
	dir      string
	command  []string
	inserted int
}{
	"django":       {"python", []string{"/usr/bin/python3", "with_django.py"}, 4*rows + 1},
	"sqlalchemy":   {"python", []string{"/usr/bin/python3", "with_sqlalchemy.py"}, 4*rows + 1},
	"activerecord": {"activerecord", []string{"ruby", "main.rb"}, 4*rows + 1},
	"knex":         {"knex", []string{"node", "main.js"}, 2 * rows},
	"typeorm":      {"typeorm", []string{"node", "main.js"}, 2 * rows},
	"gorm":         {"gorm", []string{"go", "run", "."}, 2 * rows},
	"sqlc":         {"sqlc", []string{"go", "run", "."}, 2 * rows},
	"ent":          {"ent", []string{"go", "run", "."}, 2 * rows},
	"dbix":         {"dbix", []string{"perl", "main.pl"}, 4*rows + 1},
	"eloquent":     {"eloquent", []string{"php", "main.php"}, 4*rows + 1},
	"exposed":      {"exposed", []string{"sh", "-c", `exec java -cp "target/classes:$(cat target/classpath)" MainKt "$0"`}, 2 * rows},
}

// builders are commands that come before some of them, each in their directory. The others have
// what they need, or keep it beside them.
var builders = map[string]string{
	"ent":     "go generate .",
	"exposed": "mvn -q -B -ntp -f ../../../clients/java/pom.xml install && mvn -q -B -ntp compile dependency:build-classpath -Dmdep.outputFile=target/classpath",
}

// Two processes of each recipe insert rows at the same time, and what some of them
// fork does, too. The primary key lets no number in twice.
func TestRecipes(t *testing.T) {
	database := testservers.SharedPostgres(t).URL
	db, err := sql.Open("pgx", database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	server := serve(t)
	for name, r := range recipes {
		t.Run(name, func(t *testing.T) {
			testservers.Require(t, r.command[:1])
			if command, ok := builders[name]; ok {
				build := exec.CommandContext(t.Context(), "sh", "-c", command)
				build.Dir = r.dir
				if out, err := build.CombinedOutput(); err != nil {
					t.Fatalf("%v: %v\n%s", build, err, out)
				}
			}
			run := func(what string) error {
				cmd := exec.CommandContext(t.Context(), r.command[0], append(r.command[1:], what)...)
				cmd.Dir = r.dir
				cmd.Env = append(os.Environ(), "DATABASE_URL="+database, "HAPAX_SERVER="+server, "PYTHONDONTWRITEBYTECODE=1")
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%v: %v\n%s", cmd, err, out)
				}
				return err
			}
			table := "recipe_" + name
			if _, err := db.ExecContext(t.Context(), "DROP TABLE IF EXISTS "+table); err != nil {
				t.Fatal(err)
			}
			if run("create") != nil {
				return
			}
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() { _ = run(strconv.Itoa(rows)) }) // it has reported the error
			}
			both.Wait()
			var inserted, numbered int
			if err := db.QueryRowContext(t.Context(), "SELECT count(*), count(DISTINCT id) FROM "+table+" WHERE id > 0").Scan(&inserted, &numbered); err != nil {
				t.Fatal(err)
			}
			if inserted != 2*r.inserted || numbered != inserted {
				t.Errorf("there are %d rows with %d numbers, want %d", inserted, numbered, 2*r.inserted)
			}
		})
	}
}

// serve builds and starts a server, and returns its URL.
func serve(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "hapax")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-o", binary, "./cmd/hapax").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command(binary, "serve", "--data", t.TempDir(), "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--log-format", "json")
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the test is over
		_ = cmd.Wait()
	})
	serving := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var line struct{ Msg, HTTP string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving" {
				serving <- line.HTTP
			}
		}
	}()
	select {
	case address := <-serving:
		if u, err := url.Parse(address); err == nil && u.Scheme != "" {
			return address
		}
		return "http://" + address
	case <-time.After(patience.Long):
		t.Fatal("the server did not start")
		return ""
	}
}
