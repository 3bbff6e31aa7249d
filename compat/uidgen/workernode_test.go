package uidgen

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	_ "github.com/go-sql-driver/mysql"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/testservers"
)

const testAddress = "192.0.2.10"

// TestMain is a process with a generator over the table when the environment says so:
// it prints its worker ID, and then numbers until it is killed or nobody reads on.
func TestMain(m *testing.M) {
	dsn := os.Getenv("HAPAX_TEST_WORKER_NODE")
	if dsn == "" {
		os.Exit(m.Run())
	}
	db, err := sql.Open("mysql", dsn)
	if err == nil {
		var c *CachedGenerator
		c, err = NewCached(context.Background(), Table{DB: db, Address: testAddress}.Workers(), CachedOptions{Options: Options{Settings: sample}})
		for err == nil {
			var id hapax.ID
			if id, err = c.GetUID(context.Background()); err == nil {
				_, err = fmt.Fprintln(os.Stdout, c.Stats().Worker, id)
			}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// sample is the documented sample, whose time lasts until 2033.
var sample = Settings{TimeBits: 29, WorkerBits: 21, SeqBits: 13, EpochStr: "2016-09-20"}

// table creates the table as uid-generator's guide does.
func table(t *testing.T) (*sql.DB, string) {
	t.Helper()
	u, err := url.Parse(testdb.New(t, testservers.SharedMariaDB(t)).URL)
	if err != nil {
		t.Fatal(err)
	}
	dsn := fmt.Sprintf("%s@tcp(%s)%s", u.User, u.Host, u.Path)
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	execute(t, db, `CREATE TABLE WORKER_NODE (
		ID BIGINT NOT NULL AUTO_INCREMENT, HOST_NAME VARCHAR(64) NOT NULL, PORT VARCHAR(64) NOT NULL, TYPE INT NOT NULL,
		LAUNCH_DATE DATE NOT NULL, MODIFIED TIMESTAMP NOT NULL, CREATED TIMESTAMP NOT NULL, PRIMARY KEY (ID))`)
	return db, dsn
}

func execute(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// original comes by a worker ID as uid-generator does.
func original(ctx context.Context, db *sql.DB, host string) (int64, error) {
	result, err := db.ExecContext(ctx, "INSERT INTO WORKER_NODE (HOST_NAME, PORT, TYPE, LAUNCH_DATE, MODIFIED, CREATED) VALUES (?, ?, 2, NOW(), NOW(), NOW())", host, "1-1")
	if err != nil {
		return 0, err
	}
	return result.LastInsertId()
}

func environment(values map[string]string) func(string) string {
	return func(name string) string { return values[name] }
}

func TestWorker(t *testing.T) {
	db, dsn := table(t)
	layout, err := sample.Layout()
	if err != nil {
		t.Fatal(err)
	}
	none := environment(nil)

	t.Run("rows", func(t *testing.T) {
		for _, tt := range []struct {
			name     string
			env      map[string]string
			host     string
			port     string // how it begins
			kind     int
			mistaken bool
		}{
			{"host", nil, testAddress, "1", 2, false},
			{"container", map[string]string{"JPAAS_HOST": "h1", "JPAAS_HTTP_PORT": "8080"}, "h1", "8080", 1, false},
			{"container with the older variable", map[string]string{"JPAAS_HOST": "h1", "JPAAS_HOST_PORT_8080": "9090"}, "h1", "9090", 1, false},
			{"host without port", map[string]string{"JPAAS_HOST": "h1"}, "", "", 0, true},
			{"port without host", map[string]string{"JPAAS_HTTP_PORT": "8080"}, "", "", 0, true},
			{"long", map[string]string{"JPAAS_HOST": strings.Repeat("h", 65), "JPAAS_HTTP_PORT": "1"}, "", "", 0, true},
		} {
			id, err := Table{DB: db, Address: testAddress, Getenv: environment(tt.env)}.Worker(t.Context(), layout)
			if tt.mistaken {
				if !errors.Is(err, hapax.ErrInvalidArgument) {
					t.Errorf("%s: %d, %v", tt.name, id, err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			var host, port, launched string
			var kind int
			if err := db.QueryRowContext(t.Context(), "SELECT HOST_NAME, PORT, TYPE, LAUNCH_DATE FROM WORKER_NODE WHERE ID = ? AND CREATED > '2020-01-01' AND MODIFIED = CREATED", id).
				Scan(&host, &port, &kind, &launched); err != nil || host != tt.host || !strings.HasPrefix(port, tt.port) || kind != tt.kind || launched < "2020" {
				t.Errorf("%s: row %d is %s:%s, type %d, launched %s, %v", tt.name, id, host, port, kind, launched, err)
			}
		}
	})

	t.Run("used up", func(t *testing.T) {
		execute(t, db, fmt.Sprintf("ALTER TABLE WORKER_NODE AUTO_INCREMENT = %d", layout.Workers()-1))
		ours := Table{DB: db, Address: testAddress, Getenv: none}
		if last, err := ours.Worker(t.Context(), layout); err != nil || last != layout.Workers()-1 {
			t.Errorf("the last worker ID: %d, %v; want %d", last, err, layout.Workers()-1)
		}
		_, err := ours.Worker(t.Context(), layout)
		if !errors.Is(err, hapax.ErrFieldRange) || !strings.Contains(err.Error(), "the 2097151 starts that the layout has worker IDs for are used up") {
			t.Errorf("got %v", err)
		}
		if _, err := New(t.Context(), ours.Workers(), Options{Settings: sample}); !errors.Is(err, hapax.ErrFieldRange) {
			t.Errorf("a generator: %v", err)
		}
	})

	// A restored database handed out worker IDs again.
	t.Run("restored", func(t *testing.T) {
		execute(t, db, "TRUNCATE TABLE WORKER_NODE")
		ours := Table{DB: db, Address: testAddress, Getenv: none, Witness: filepath.Join(t.TempDir(), "worker-node")}
		for want := range int64(3) {
			if id, err := ours.Worker(t.Context(), layout); id != want+1 || err != nil {
				t.Fatalf("worker %d, %v; want %d", id, err, want+1)
			}
		}
		execute(t, db, "TRUNCATE TABLE WORKER_NODE")
		if id, err := ours.Worker(t.Context(), layout); !errors.Is(err, hapax.ErrStoreRolledBack) {
			t.Errorf("worker %d again, %v; want ErrStoreRolledBack", id, err)
		}
		execute(t, db, "ALTER TABLE WORKER_NODE AUTO_INCREMENT = 4")
		if id, err := ours.Worker(t.Context(), layout); id != 4 || err != nil {
			t.Errorf("worker %d, %v; want 4", id, err)
		}
		if err := os.WriteFile(ours.Witness, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ours.Worker(t.Context(), layout); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("a witness that cannot be read: %v", err)
		}
	})

	// Every instance was worker 0 where no key was returned.
	t.Run("no key", func(t *testing.T) {
		execute(t, db, "TRUNCATE TABLE WORKER_NODE")
		execute(t, db, "ALTER TABLE WORKER_NODE MODIFY ID BIGINT NOT NULL DEFAULT 0")
		defer execute(t, db, "ALTER TABLE WORKER_NODE MODIFY ID BIGINT NOT NULL AUTO_INCREMENT")
		if id, err := (Table{DB: db, Address: testAddress, Getenv: none}).Worker(t.Context(), layout); !errors.Is(err, hapax.ErrStoreCorrupt) {
			t.Errorf("worker %d, %v; want ErrStoreCorrupt", id, err)
		}
		execute(t, db, "TRUNCATE TABLE WORKER_NODE")
	})

	t.Run("mistakes", func(t *testing.T) {
		if _, err := (Table{}).Worker(t.Context(), layout); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("no database: %v", err)
		}
		closed, err := sql.Open("mysql", dsn)
		if err != nil {
			t.Fatal(err)
		}
		_ = closed.Close()
		if _, err := (Table{DB: closed, Address: testAddress, Getenv: none}).Worker(t.Context(), layout); !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("a closed database: %v", err)
		}
		// A layout whose time is over uses up no row.
		before := count(t, db)
		_, err = New(t.Context(), Table{DB: db, Address: testAddress, Getenv: none}.Workers(), Options{})
		if after := count(t, db); !errors.Is(err, hapax.ErrTimeExhausted) || after != before {
			t.Errorf("got %v, and %d rows after %d", err, after, before)
		}
		if _, err := hapax.NewSnowflake(t.Context(), Table{DB: db, Address: testAddress, Getenv: none}.Workers(), hapax.SnowflakeOptions{Layout: layout, Workers: hapax.WorkerRange{Lo: 1 << 20, Hi: 1<<20 + 1}}); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("a range without the key: %v", err)
		}
	})
}

func count(t *testing.T, db *sql.DB) (n int64) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM WORKER_NODE").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// run starts a process with a generator, reads some of its numbers and kills it.
func run(ctx context.Context, dsn string, numbers int) (worker int64, ids []hapax.ID, err error) {
	exe, err := os.Executable()
	if err != nil {
		return 0, nil, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), "HAPAX_TEST_WORKER_NODE="+dsn)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, nil, err
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	lines := bufio.NewScanner(out)
	for range numbers {
		if !lines.Scan() {
			err = errors.Join(fmt.Errorf("the process ended after %d numbers", len(ids)), lines.Err())
			break
		}
		var id hapax.ID
		if _, err = fmt.Sscan(lines.Text(), &worker, &id); err != nil {
			break
		}
		ids = append(ids, id)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	return worker, ids, err
}

// TestBesideOriginals has processes that are killed again and again, and uid-generators,
// start over one table at once: no worker ID is used twice, and no number.
func TestBesideOriginals(t *testing.T) {
	const processes, rounds, numbers, starts = 3, 4, 2000, 60
	db, dsn := table(t)
	var mu sync.Mutex
	owners, issued := map[int64]string{}, map[hapax.ID]bool{}
	own := func(id int64, who string) {
		mu.Lock()
		defer mu.Unlock()
		if other, taken := owners[id]; taken || id == 0 {
			t.Errorf("%s and %s are both worker %d", other, who, id)
		}
		owners[id] = who
	}
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			for start := range starts {
				id, err := original(t.Context(), db, "192.0.2."+strconv.Itoa(20+i))
				if err != nil {
					t.Error(err)
					return
				}
				own(id, fmt.Sprintf("start %d of uid-generator %d", start, i))
			}
		})
	}
	for p := range processes {
		wg.Go(func() {
			for round := range rounds {
				worker, ids, err := run(t.Context(), dsn, numbers)
				if err != nil {
					t.Error(err)
					return
				}
				own(worker, fmt.Sprintf("run %d of process %d", round, p))
				mu.Lock()
				for _, id := range ids {
					if issued[id] {
						t.Errorf("%d was issued twice", id)
					}
					issued[id] = true
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if want := processes * rounds * numbers; len(issued) != want || len(owners) != 3*starts+processes*rounds {
		t.Errorf("%d numbers of %d workers; want %d of %d", len(issued), len(owners), want, 3*starts+processes*rounds)
	}
}
