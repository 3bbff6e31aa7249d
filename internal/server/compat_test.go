package server

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/vesta/dubbo"
	"github.com/hapax-id/hapax/internal/mount"
	"github.com/hapax-id/hapax/internal/mount/uidgen"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/plan"
	"github.com/hapax-id/hapax/store/sqlstore/mysqlstore"
	"github.com/hapax-id/hapax/strategy"
)

// serveCompat runs a server with a compat section on free ports until the test ends.
// What stops it earlier, and waits, may be called more than once.
func serveCompat(t *testing.T, compat string, args ...any) (s *server, stop func()) {
	t.Helper()
	return serveCompatIn(t, filepath.Join(t.TempDir(), "data"), "30s", fmt.Sprintf(compat, args...))
}

// serveCompatIn does so in a data directory, and has calls wait no longer than told.
func serveCompatIn(t *testing.T, data, maxWait, compat string) (s *server, stop func()) {
	t.Helper()
	return serveLogged(t, data, maxWait, compat, slog.New(slog.DiscardHandler))
}

func serveLogged(t *testing.T, data, maxWait, compat string, log *slog.Logger) (s *server, stop func()) {
	t.Helper()
	file := writeFile(t, "http: 127.0.0.1:0\nresp: \"\"\ncompat:\n"+compat)
	c, err := Load(Sources{File: file, Flags: map[string]string{"data": data, "max_wait": maxWait}})
	if err != nil {
		t.Fatal(err)
	}
	if s, err = start(t.Context(), c, log); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx, nil) }()
	stopped := false
	stop = func() {
		if cancel(); stopped {
			return
		}
		stopped = true
		if err := <-ended; err != nil {
			t.Errorf("the server: %v", err)
		}
	}
	t.Cleanup(stop)
	return s, stop
}

// doorAt returns the listener of an address of a foreign system.
func doorAt(t *testing.T, s *server, setting string) net.Listener {
	t.Helper()
	for _, d := range s.mounts.doors() {
		if d.Setting == setting {
			return d.listener
		}
	}
	t.Fatalf("there is no %s", setting)
	return nil
}

func get(t *testing.T, l net.Listener, path string) (int, string) {
	t.Helper()
	res, err := http.Get("http://" + l.Addr().String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

// explain returns the fields of a number, as Vesta's REST tells them.
func explain(t *testing.T, l net.Listener, id string) map[string]int64 {
	t.Helper()
	fields := map[string]int64{}
	if _, text := get(t, l, "/expid?id="+id); json.Unmarshal([]byte(text), &fields) != nil {
		t.Fatalf("/expid?id=%s: %s", id, text)
	}
	return fields
}

// genID asks the central server for a number, in bytes.
func genID(t *testing.T, l net.Listener) string {
	t.Helper()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience.Long)); err != nil {
		t.Fatal(err)
	}
	var body []byte
	for _, text := range []string{"2.0.2", dubbo.DefaultInterface, "0.0.0", "genId", ""} {
		if len(text) < 32 {
			body = append(append(body, byte(len(text))), text...)
		} else {
			body = append(append(body, 'S', 0, byte(len(text))), text...)
		}
	}
	body = append(body, 'H', 'Z')
	frame := binary.BigEndian.AppendUint32([]byte{0xda, 0xbb, 0xc2, 0, 0, 0, 0, 0, 0, 0, 0, 1}, uint32(len(body)))
	if _, err := conn.Write(append(frame, body...)); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 16)
	if _, err := io.ReadFull(conn, head); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, binary.BigEndian.Uint32(head[12:]))
	if _, err := io.ReadFull(conn, reply); err != nil {
		t.Fatal(err)
	}
	at := bytes.IndexByte(reply, 'L')
	if head[3] != 20 || at < 0 || len(reply) < at+9 {
		t.Fatalf("status %d, %q", head[3], reply)
	}
	return hapax.ID(binary.BigEndian.Uint64(reply[at+1:])).String()
}

func TestVesta(t *testing.T) {
	s, stop := serveCompat(t, `  vesta: {machine: "fixed:1021", http: 127.0.0.1:0, dubbo: 127.0.0.1:0, shape: netty, zone: Asia/Shanghai}`)
	for path, want := range map[string]string{
		"/makeid?time=94990103&seq=0":    "2407837855670862845",
		"/expid?id=2319542600899494910":  `{"genMethod":2,"machine":1022,"seq":0,"time":12758739,"type":0,"version":0}`,
		"/transtime?time=12758739":       "Thu May 28 16:05:39 CST 2015",
		"/makeid?time=1&seq=0&machine=1": "",
	} {
		if status, got := get(t, doorAt(t, s, "compat.vesta.http"), path); want != "" && got != want || status != http.StatusOK {
			t.Errorf("%s: %d %s; want %s", path, status, got, want)
		}
	}
	// One issuer behind both: the method tells how a number was asked for.
	_, overREST := get(t, doorAt(t, s, "compat.vesta.http"), "/genid")
	overDubbo := genID(t, doorAt(t, s, "compat.vesta.dubbo"))
	for id, method := range map[string]int64{overREST: 2, overDubbo: 1} {
		if f := explain(t, doorAt(t, s, "compat.vesta.http"), id); f["genMethod"] != method || f["machine"] != 1021 {
			t.Errorf("%s is %v; want method %d of machine 1021", id, f, method)
		}
	}
	_, metrics := get(t, s.listeners.http, "/metrics")
	for _, want := range []string{
		`hapax_requests_total{api="dubbo",route="genId"} 1`, `hapax_failed_requests_total{api="dubbo",route="genId"} 0`,
		`hapax_request_seconds_count{api="dubbo",route="genId"} 1`, `hapax_requests_total{api="dubbo",route="other"} 0`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if status, _ := get(t, s.listeners.http, "/genid"); status != http.StatusNotFound {
		t.Errorf("the main listener answered with %d; want 404", status)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+doorAt(t, s, "compat.vesta.http").Addr().String()+"/genid", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Origin", "http://example.com")
	if res, err := http.DefaultClient.Do(req); err != nil || res.StatusCode != http.StatusForbidden {
		t.Errorf("a foreign page got %v, %v; want 403", res, err)
	} else {
		_ = res.Body.Close()
	}
	stop()
	if _, err := net.Dial("tcp", doorAt(t, s, "compat.vesta.dubbo").Addr().String()); err == nil {
		t.Error("the central server outlived the server")
	}
}

func TestVestaOnMainListener(t *testing.T) {
	s, _ := serveCompat(t, `  vesta: {machine: "fixed:3", layout: vesta-min-granularity, version: 1, gen_method: 3}`)
	status, id := get(t, s.listeners.http, "/genid")
	f := explain(t, s.listeners.http, id)
	if status != http.StatusOK || f["version"] != 1 || f["type"] != 1 || f["genMethod"] != 3 || f["machine"] != 3 {
		t.Errorf("%d %s is %v", status, id, f)
	}
	native, err := s.service.Next(t.Context(), "vesta")
	if f := explain(t, s.listeners.http, native.String()); err != nil || f["version"] != 1 || f["type"] != 1 || f["genMethod"] != 0 || f["machine"] != 3 {
		t.Errorf("%d of the tag is %v, %v", native, f, err)
	}
}

// A Vesta with an IdMeta of its own, what its log tells, and the clock's policy.
func TestVestaSettings(t *testing.T) {
	var log safeBuffer
	const layout = "version:1,type:1,genMethod:2,time:42,sequence:2,machine:10,unit=1ms,epoch=2014-12-31T16:00:00Z"
	s, stop := serveLogged(t, filepath.Join(t.TempDir(), "data"), "30s",
		fmt.Sprintf(`  vesta: {machine: "fixed:9", layout: %q, version: 1, populator: mutex, on_rollback: refuse, trace: true, http: 127.0.0.1:0}`, layout),
		slog.New(slog.NewTextHandler(&log, nil)))
	_, id := get(t, doorAt(t, s, "compat.vesta.http"), "/genid")
	if f := explain(t, doorAt(t, s, "compat.vesta.http"), id); f["machine"] != 9 || f["genMethod"] != 2 || f["type"] != 1 || f["version"] != 1 {
		t.Errorf("%s is %v", id, f)
	}
	native, err := s.service.Next(t.Context(), "vesta")
	if f := explain(t, doorAt(t, s, "compat.vesta.http"), native.String()); err != nil || f["genMethod"] != 0 || f["type"] != 1 || f["version"] != 1 {
		t.Errorf("%d of the tag is %v, %v", native, f, err)
	}
	if p := s.mounts.host.Use["vesta"]; p.OnRollback != string(hapax.RollbackRefuse) {
		t.Errorf("the pool is %+v", p)
	}
	if _, err := s.service.NextN(t.Context(), "vesta", make([]hapax.ID, 500)); err != nil { // four a millisecond
		t.Fatal(err)
	}
	stop()
	for _, want := range []string{
		`msg="Vesta's numbers" populator=mutex`, "on_rollback=refuse", `msg="number issued" id=` + id + " fields.machine=9",
		"waits_after_a_crash_up_to=20s", "the numbers of this tick are used out",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, log.String())
		}
	}
}

// A safeBuffer takes what several goroutines write.
type safeBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// The central server is found in ZooKeeper while it runs.
func TestVestaRegistry(t *testing.T) {
	servers := strings.TrimPrefix(testservers.ZooKeeper(t).URL, "zk://")
	conn, _, err := zk.Connect([]string{strings.TrimSuffix(servers, "/")}, 10*time.Second, zk.WithLogInfo(false), zk.WithDialer(patience.Dial))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	await := func(want int) []string {
		for deadline := time.Now().Add(patience.Long); ; patience.Again() {
			found, _, err := conn.Children("/dubbo/" + dubbo.DefaultInterface + "/providers")
			if err == nil && len(found) == want {
				return found
			}
			if time.Now().After(deadline) {
				t.Fatalf("there are %q, %v; want %d", found, err, want)
			}
		}
	}
	s, stop := serveCompat(t, `  vesta: {machine: "fixed:5", http: 127.0.0.1:0, dubbo: 127.0.0.1:0, registry: "zk://%s", advertise: 127.0.0.1:20880}`, servers)
	if provider := await(1)[0]; !strings.HasPrefix(provider, "dubbo%3A%2F%2F127.0.0.1%3A20880%2F"+dubbo.DefaultInterface) {
		t.Errorf("registered is %s", provider)
	}
	genID(t, doorAt(t, s, "compat.vesta.dubbo"))
	stop()
	await(0)
}

// Worker IDs come from the foreign tables, and go to no other start.
func TestForeignTables(t *testing.T) {
	url := testservers.SharedMariaDB(t).URL // nobody else has tables of these names there
	db, err := mysqlstore.OpenDB(url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, statement := range []string{
		"DROP TABLE IF EXISTS WORKER_NODE, DB_MACHINE_ID_PROVIDER, uids",
		"CREATE TABLE WORKER_NODE (ID BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, HOST_NAME VARCHAR(64) NOT NULL, PORT VARCHAR(64) NOT NULL, TYPE INT NOT NULL, LAUNCH_DATE DATE NOT NULL, MODIFIED TIMESTAMP NOT NULL, CREATED TIMESTAMP NOT NULL) AUTO_INCREMENT = 41",
		"CREATE TABLE DB_MACHINE_ID_PROVIDER (ID BIGINT NOT NULL PRIMARY KEY, IP VARCHAR(64) NULL UNIQUE)",
		"INSERT INTO DB_MACHINE_ID_PROVIDER (ID) VALUES (924), (925)",
		"CREATE TABLE uids (id BIGINT)",
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	layout, err := hapax.ParseLayout(hapax.LayoutUIDGenerator29)
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(t.TempDir(), "data")
	both := fmt.Sprintf("  vesta: {table: %q, http: 127.0.0.1:0}\n  uidgen: {table: %q, layout: uidgenerator-29-21-13, boost_power: 4}", url, url)
	for _, worker := range []int64{41, 42} {
		s, stop := serveCompatIn(t, data, "30s", both)
		id, err := s.service.Next(t.Context(), "uidgen")
		if err != nil {
			t.Fatal(err)
		}
		fields, err := layout.Parse(id)
		if got, _ := fields.Get("worker"); got != worker || err != nil {
			t.Errorf("%d is of worker %d, %v; want %d", id, got, err, worker)
		}
		if _, id := get(t, doorAt(t, s, "compat.vesta.http"), "/genid"); explain(t, doorAt(t, s, "compat.vesta.http"), id)["machine"] != 924 {
			t.Errorf("%s is not of machine 924", id)
		}
		// The generators beside this server have worker IDs of the same pool from the same table.
		for pool, table := range map[string]string{"uidgen": "WORKER_NODE", "vesta": "DB_MACHINE_ID_PROVIDER"} {
			lease, err := s.service.AcquireWorker(t.Context(), hapax.AcquireRequest{Pool: pool, Holder: "hold", Term: hapax.Term{Length: time.Minute}})
			if !errors.Is(err, strategy.ErrRejected) || !strings.Contains(err.Error(), table) {
				t.Errorf("pool %s leases worker ID %d, which %s may give another program: %v", pool, lease.Worker, table, err)
			}
		}
		stop()
	}

	// A table that was set back is not used: it would give out a key again.
	for _, statement := range []string{"DELETE FROM WORKER_NODE", "ALTER TABLE WORKER_NODE AUTO_INCREMENT = 42"} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Load(Sources{File: writeFile(t, "http: 127.0.0.1:0\nresp: \"\"\ncompat:\n"+both), Flags: map[string]string{"data": data}})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := start(t.Context(), c, slog.New(slog.DiscardHandler)); !errors.Is(err, hapax.ErrStoreRolledBack) {
		t.Errorf("with a table that was set back: %v, %v", s, err)
	}

	if _, _, err := uidgen.ColumnRange(t.Context(), url, "uids.id"); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("an empty column: %v", err)
	}
	insert(t, db, -5, -7)
	if used, negative, err := uidgen.ColumnRange(t.Context(), url, "uids.id"); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("a column with nothing but numbers below zero: %+v, %d, %v", used, negative, err)
	}
	insert(t, db, 17, 4, 9)
	if used, negative, err := uidgen.ColumnRange(t.Context(), url, "uids.id"); used != (plan.Span{Min: 4, Max: 17}) || negative != 2 || err != nil {
		t.Errorf("%+v and %d below zero, %v; want 4 to 17 and 2", used, negative, err)
	}
	if _, _, err := uidgen.ColumnRange(t.Context(), url, "uids.id` FROM x; --"); !errors.Is(err, hapax.ErrInvalidArgument) {
		t.Errorf("a strange column: %v", err)
	}
	if _, _, err := uidgen.ColumnRange(t.Context(), url, "uids.none"); !errors.Is(err, hapax.ErrStoreUnavailable) {
		t.Errorf("a column that is not there: %v", err)
	}
}

func insert(t *testing.T, db *sql.DB, ids ...int64) {
	t.Helper()
	for _, id := range ids {
		if _, err := db.ExecContext(t.Context(), "INSERT INTO uids VALUES (?)", id); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBadCompat(t *testing.T) {
	for _, tt := range []struct{ name, yaml, want string }{
		{"system", "compat: {vestal: {}}", "did you mean compat.vesta?"},
		{"key", "compat: {vesta: {htp: x}}", "did you mean compat.vesta.http?"},
		{"key of another", "compat: {vesta: {boost_power: 3}}", "there is no setting compat.vesta.boost_power"},
		{"layout", "compat: {vesta: {layout: round}}", "compat.vesta.layout"},
		{"populator", "compat: {vesta: {populator: lock}}", "vesta.populator"},
		{"rollback", "compat: {vesta: {on_rollback: stop}}", "compat.vesta.on_rollback"},
		{"grant", "compat: {leaf: {tree: 'zk://h:1', name: demo, port: 1, grant: 1s}}", "compat.leaf.grant"},
		{"both", `compat: {vesta: {machine: "fixed:1", table: "mysql://h/d"}}`, "compat.vesta.machine"},
		{"table", "compat: {vesta: {table: 'postgres://u:secret@h/d'}}", "compat.vesta.table"},
		{"shape", "compat: {vesta: {shape: round}}", "compat.vesta.shape"},
		{"zone", "compat: {vesta: {zone: Nowhere}}", "compat.vesta.zone"},
		{"registry alone", "compat: {vesta: {registry: 'zk://h:1'}}", "compat.vesta.dubbo"},
		{"advertise", "compat: {vesta: {registry: 'zk://h:1', dubbo: '0.0.0.0:20880', allow: [10.0.0.0/8]}}", "compat.vesta.advertise"},
		{"network", "compat: {vesta: {allow: [10.0.0.0]}}", "compat.vesta.allow"},
		{"open to all", "compat: {vesta: {dubbo: '0.0.0.0:0'}}", "allow, beside it"},
		{"token", "tokens: {a: {hash: 'sha256:" + strings.Repeat("0", 64) + "'}}\ncompat: {vesta: {}}", "compat.vesta.http"},
		{"taken", "tags: {vesta: {}}\ncompat: {vesta: {}}", "take them out of tags and pools"},
		{"time", "compat: {uidgen: {}}", "ran out at 2024-11-20T13:24:16Z"},
		{"boost", "compat: {uidgen: {layout: uidgenerator-29-21-13, boost_power: 16}}", "compat.uidgen.boost_power"},
		{"padding", "compat: {uidgen: {layout: uidgenerator-29-21-13, paddingfactor: 100}}", "did you mean compat.uidgen.padding_factor?"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Load(Sources{File: writeFile(t, tt.yaml)})
			if err == nil {
				err = Check(t.Context(), c)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v; want %q", err, tt.want)
			}
		})
	}
}

func TestAllowing(t *testing.T) {
	networks, err := mount.Networks("vesta.allow", []string{"10.0.0.0/8", "2001:db8::/32"})
	if err != nil {
		t.Fatal(err)
	}
	l := &allowing{networks: networks}
	for text, want := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "10.1.2.3:1": true, "[::ffff:10.1.2.3]:1": true, "[2001:db8::1]:1": true, "11.0.0.1:1": false, "[2001:db9::1]:1": false} {
		at, err := net.ResolveTCPAddr("tcp", text)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.allows(at); got != want {
			t.Errorf("%s is let in: %v; want %v", text, got, want)
		}
	}
}

// Settings of uid-generator that have no effect are accepted, named, and not kept.
func TestIgnored(t *testing.T) {
	c, err := Load(Sources{File: writeFile(t, "compat: {uidgen: {layout: uidgenerator-29-21-13, padding_factor: 100, schedule_interval: 5m}}")})
	if err == nil {
		err = Check(t.Context(), c)
	}
	if want := []string{"compat.uidgen.padding_factor", "compat.uidgen.schedule_interval"}; err != nil || !slices.Equal(c.ignored, want) {
		t.Errorf("named are %q, %v; want %q", c.ignored, err, want)
	}
	if text, err := c.AppendYAML(nil); err != nil || strings.Contains(string(text), "padding_factor:") {
		t.Errorf("shown is %s, %v", text[max(0, len(text)-400):], err)
	}
}

// Passwords of tables are not shown.
func TestCompatShown(t *testing.T) {
	c, err := Load(Sources{File: writeFile(t, "compat: {vesta: {table: 'mysql://u:secret@h/d', allow: [10.0.0.0/8]}}")})
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.AppendYAML(nil)
	if err != nil || strings.Contains(string(text), "secret") || !strings.Contains(string(text), "table: mysql://u:xxxxx@h/d") {
		t.Errorf("%v:\n%s", err, text[max(0, len(text)-400):])
	}
	var names []string
	for _, e := range systems {
		names = append(names, e.Name)
	}
	if !slices.Equal(names, []string{"leaf", "tinyid", "vesta", "uidgen", "redismongo"}) {
		t.Errorf("described are %v", names)
	}
}
