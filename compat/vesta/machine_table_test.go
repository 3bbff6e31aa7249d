package vesta

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

const testAddress = "192.0.2.10" // of this host, as far as the tests' processes know

// TestMain is a process with a row of the table when the environment says so: it
// prints its machine ID and keeps it until its input ends.
func TestMain(m *testing.M) {
	dsn := os.Getenv("HAPAX_TEST_VESTA_TABLE")
	if dsn == "" {
		os.Exit(m.Run())
	}
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
		os.Exit(1)
	}
	id, release, err := Table{DB: db, Address: testAddress, Host: Host{Dir: os.Getenv("HAPAX_TEST_VESTA_DIR")}, settle: atOnce}.Machine(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, id)
	_, _ = io.Copy(io.Discard, os.Stdin)
	release()
}

// table creates the table as Vesta does, with rows 0 to n-1.
func table(t *testing.T, n int) (*sql.DB, string) {
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
	for _, statement := range []string{
		"CREATE TABLE DB_MACHINE_ID_PROVIDER (ID bigint NOT NULL, IP varchar(64) DEFAULT NULL, PRIMARY KEY (ID), UNIQUE KEY UK_IP (IP))",
		fmt.Sprintf("INSERT INTO DB_MACHINE_ID_PROVIDER (ID) SELECT seq FROM seq_0_to_%d", n-1),
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return db, dsn
}

// original comes by a machine ID as Vesta does.
func original(ctx context.Context, db *sql.DB, ip string) (id int64, err error) {
	find := func() error {
		return db.QueryRowContext(ctx, "select ID from DB_MACHINE_ID_PROVIDER where IP = ?", ip).Scan(&id)
	}
	if err = find(); !errors.Is(err, sql.ErrNoRows) {
		return id, err
	}
	if _, err = db.ExecContext(ctx, "update DB_MACHINE_ID_PROVIDER set IP = ? where IP is null limit 1", ip); err != nil {
		return 0, err
	}
	return id, find()
}

func TestTable(t *testing.T) {
	db, dsn := table(t, 5)
	host := Host{Dir: t.TempDir()}
	ours := Table{DB: db, Address: testAddress, Host: host, settle: atOnce}

	theirs, err := original(t.Context(), db, testAddress)
	if err != nil {
		t.Fatal(err)
	}
	first, release := take(t, ours)
	second, _ := take(t, ours)
	if first == theirs || second == theirs || first == second {
		t.Errorf("machines %d, %d and %d are not three", theirs, first, second)
	}
	release()
	if again, _ := take(t, ours); again != first {
		t.Errorf("machine %d after a restart; want %d", again, first)
	}

	// The row of a Vesta that is stopped is taken over by its key, by one process.
	over := Table{DB: db, Key: testAddress, Host: host, settle: atOnce}
	if got, _ := take(t, over); got != theirs {
		t.Errorf("took over machine %d; want %d", got, theirs)
	}
	if _, _, err := over.Machine(t.Context()); !errors.Is(err, hapax.ErrNoWorker) {
		t.Errorf("a second process took it over: %v", err)
	}

	// A range is kept to; then it is used up.
	server := Table{DB: db, Key: "192.0.2.99", Range: hapax.WorkerRange{Lo: 4, Hi: 5}, Host: host, settle: atOnce}
	if got, _ := take(t, server); got != 4 {
		t.Errorf("got machine %d; want 4", got)
	}
	server.Key = "192.0.2.98"
	if _, _, err := server.Machine(t.Context()); !errors.Is(err, hapax.ErrNoWorker) || !strings.Contains(err.Error(), "from 4 to 4 is free") {
		t.Errorf("got %v", err)
	}

	if _, err := db.ExecContext(t.Context(), "UPDATE DB_MACHINE_ID_PROVIDER SET ID = 1024 WHERE ID = 4"); err != nil {
		t.Fatal(err)
	}
	server.Key, server.Host = "192.0.2.99", Host{Dir: t.TempDir()}
	if _, _, err := server.Machine(t.Context()); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("machine 1024: %v", err)
	}
	for name, wrong := range map[string]Table{
		"no database": {Key: "k"},
		"long key":    {DB: db, Key: strings.Repeat("k", 65)},
		"no address":  {DB: db, Address: "host"},
		"range":       {DB: db, Key: "k", Range: hapax.WorkerRange{Lo: 0, Hi: 1025}},
	} {
		if _, _, err := wrong.Machine(t.Context()); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	closed, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	if _, _, err := (Table{DB: closed, Key: "k", Host: host}).Machine(t.Context()); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("a closed database: %v", err)
	}
}

// atOnce is for tests in which nothing is issued.
func atOnce(context.Context) error { return nil }

// TestTableMemory: three servers on one host find their own rows again, in whatever order
// they are started, and wait for nobody. Who has a row that another one had last waits
// until that one's numbers are of the past.
func TestTableMemory(t *testing.T) {
	db, _ := table(t, 8)
	host, dir := Host{Dir: t.TempDir()}, t.TempDir()
	waits := 0
	start := func(memory string) (int64, func()) {
		t.Helper()
		of := Table{DB: db, Address: testAddress, Host: host, settle: func(context.Context) error { waits++; return nil }}
		if memory != "" {
			of.Memory = filepath.Join(dir, memory)
		}
		return take(t, of)
	}
	had := map[string]int64{}
	var stops []func()
	for _, name := range []string{"a", "b", "c"} {
		id, stop := start(name)
		had[name], stops = id, append(stops, stop)
	}
	for _, order := range [][]string{{"c", "a", "b"}, {"b", "c", "a"}} {
		for _, stop := range stops {
			stop()
		}
		stops = nil
		for _, name := range order {
			id, stop := start(name)
			if stops = append(stops, stop); id != had[name] {
				t.Errorf("%s is machine %d; want %d, as before", name, id, had[name])
			}
		}
	}
	if waits != 0 {
		t.Errorf("they waited %d times", waits)
	}
	stops[2]() // a, whose row another one takes meanwhile
	id, stop := start("")
	if id != had["a"] || waits != 1 {
		t.Errorf("another one is machine %d, and waited %d times; want %d, once", id, waits, had["a"])
	}
	stop()
	if id, _ := start("a"); id != had["a"] || waits != 2 {
		t.Errorf("a is machine %d, and waited %d times in all; want %d, twice", id, waits, had["a"])
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := settle(ctx); !errors.Is(err, hapax.ErrNoWorker) {
		t.Errorf("a wait that is cut off: %v", err)
	}
	for _, text := range []string{"", "x", "a b c", "a 1", strings.Repeat("x", 1000)} {
		path := filepath.Join(dir, "wrong")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if m := (Table{Memory: path}).remembered(); m != (memory{}) {
			t.Errorf("%.20q is taken for %+v", text, m)
		}
	}
}

// A process is another process of this host, with a machine ID.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	id    int64
}

func spawn(t *testing.T, dsn, dir string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(t.Context(), exe)}
	p.cmd.Env = append(os.Environ(), "HAPAX_TEST_VESTA_TABLE="+dsn, "HAPAX_TEST_VESTA_DIR="+dir)
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		p.id, err = strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	}
	return p, err
}

// TestTableBesideOriginals has processes of this host, which are killed and started
// again, and Vestas on this and other hosts come by machine IDs of one table at once.
func TestTableBesideOriginals(t *testing.T) {
	const slots, rounds, vestas = 3, 4, 20
	db, dsn := table(t, slots+vestas)
	dir := t.TempDir()
	var mu sync.Mutex
	holders := map[int64]string{}
	hold := func(id int64, who string) {
		mu.Lock()
		defer mu.Unlock()
		if other, taken := holders[id]; taken {
			t.Errorf("%s and %s are both machine %d", other, who, id)
		}
		holders[id] = who
	}
	var wg sync.WaitGroup
	for i := range vestas {
		wg.Go(func() {
			patience.Slow(time.Duration(i) * 20 * time.Millisecond)
			ip := fmt.Sprintf("192.0.2.%d", 10+i) // the first is a Vesta on this host
			id, err := original(t.Context(), db, ip)
			for tries := 1; err != nil && tries < 5; tries++ { // its supervisor starts it again
				id, err = original(t.Context(), db, ip)
			}
			if err != nil {
				t.Error(err)
				return
			}
			hold(id, "the Vesta on "+ip)
		})
	}
	for slot := range slots {
		wg.Go(func() {
			for round := range rounds {
				p, err := spawn(t, dsn, dir)
				if err != nil {
					t.Error(err)
					return
				}
				who := fmt.Sprintf("process %d, run %d", slot, round)
				hold(p.id, who)
				patience.Slow(50 * time.Millisecond)
				mu.Lock()
				delete(holders, p.id) // before it ends, and the next may have it
				mu.Unlock()
				if round%2 == 0 {
					_ = p.cmd.Process.Kill()
				} else {
					_ = p.stdin.Close()
				}
				_ = p.cmd.Wait() // killed or not
			}
		})
	}
	wg.Wait()
	if len(holders) != vestas {
		t.Errorf("%d machines are left; want %d", len(holders), vestas)
	}
	var used int
	if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM DB_MACHINE_ID_PROVIDER WHERE IP LIKE '%#%'").Scan(&used); err != nil || used > slots {
		t.Errorf("%d rows for %d processes, %v", used, slots, err)
	}
}
