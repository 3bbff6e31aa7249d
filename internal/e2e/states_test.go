package e2e

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A stateTest brings a node into a state, in which everything that tells of it must say
// the same: /readyz, hapax status, the metrics, the alarms in the log, and the alerts of
// deploy/prometheus over the metrics of before and after.
type stateTest struct {
	name  string
	enter func(*stateRig) *serving

	state    string     // default "serving"
	unready  bool       // nothing can be issued
	degraded bool       // something cannot
	code     hapax.Code // of the store's trouble
	beside   bool       // it is a foreign system that is in trouble, which hapax status tells of by itself
	command  string     // a part of the remedy
	alarms   []string   // all that are up
	alerts   []string   // all that fire
	logged   string     // a part of the log

	gone  bool // it does not answer
	grows bool // the counters go on as they did while the state was entered
	heals bool // it went back, and a grant may be refused before the fence is found, or not
}

// slow is by how much a proxy holds up what a slow store answers.
const slow = 80 * time.Millisecond

// A stateRig is what a state is made of: a database of its own behind a proxy.
type stateRig struct {
	t     *testing.T
	dir   string
	proxy *testservers.Proxy
	store string // URL through the proxy
	plain string // and not
	table string // the prefix of its tables
	token string // with which the node is asked; empty for none
	web   *http.Client
	env   []string // of commands that ask the node

	alarms *alarmSink
	before map[string]float64 // series as they were before the state
}

func newStateRig(t *testing.T, server *testservers.Server) *stateRig {
	t.Helper()
	r := &stateRig{t: t, web: patient, dir: t.TempDir(), proxy: testservers.NewProxy(t, server.Addr), table: unusedName("st") + "_"}
	withPrefix := func(url string) string {
		sep := "?"
		if strings.Contains(url, "?") {
			sep = "&"
		}
		return url + sep + "prefix=" + r.table
	}
	r.store, r.plain = withPrefix(r.proxy.URL(server.URL)), withPrefix(server.URL)
	r.alarms = newAlarmSink(t)
	return r
}

// config writes a configuration, with the settings of every state that it does not have
// itself.
func (r *stateRig) config(name, text string) string {
	r.t.Helper()
	for _, line := range []string{"max_wait: 200ms", "heartbeat: 500ms", "ledger: off", "alarm_budget: 1s", "alarm_url: " + r.alarms.url} {
		key, _, _ := strings.Cut(line, ":")
		if !strings.Contains("\n"+text, "\n"+key+":") {
			text = line + "\n" + text
		}
	}
	file := filepath.Join(r.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return file
}

// node starts a node of the store.
func (r *stateRig) node(name, config string, args ...string) *serving {
	r.t.Helper()
	return r.nodeWith(nil, name, config, args...)
}

func (r *stateRig) nodeWith(env []string, name, config string, args ...string) *serving {
	r.t.Helper()
	file := r.config(name, config)
	return serve(r.t, r.dir, env, append([]string{"--config", file, "--store", r.store, "--data", name}, args...)...)
}

// issues waits until a node issues numbers of a tag, and notes the metrics of before.
func (r *stateRig) issues(s *serving, tag string) {
	r.t.Helper()
	takeSoon(r.t, s, tag, 1)
	r.note(s)
}

// sql has the database's owner execute statements.
func (r *stateRig) sql(statements ...string) {
	r.t.Helper()
	db := r.open()
	defer db.Close()
	for _, statement := range statements {
		if _, err := db.ExecContext(r.t.Context(), statement); err != nil {
			r.t.Fatalf("%s: %v", statement, err)
		}
	}
}

// note keeps the metrics, for changes from here on.
func (r *stateRig) note(s *serving) {
	r.t.Helper()
	_, text, err := r.get(s, "/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	r.before = seriesOf(text)
}

// limit bounds the size of the files that a node may write.
func (r *stateRig) limit(s *serving, bytes string) {
	r.t.Helper()
	testservers.Require(r.t, []string{"prlimit"})
	if out, err := exec.Command("prlimit", "--pid", strconv.Itoa(s.cmd.Process.Pid), "--fsize="+bytes+":").CombinedOutput(); err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
}

func (r *stateRig) signal(s *serving, sig syscall.Signal) {
	r.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		r.t.Fatal(err)
	}
}

// get asks a node for a page.
func (r *stateRig) get(s *serving, path string) (status int, text string, err error) {
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, s.url+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	resp, err := r.web.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// A told is what /readyz and hapax status tell of alarms.
type told []struct{ Alarm, About, See string }

func (t told) names() []string {
	var all []string
	for _, a := range t {
		if !slices.Contains(all, a.Alarm) {
			all = append(all, a.Alarm)
		}
	}
	slices.Sort(all)
	return all
}

// lacks returns what does not tell the state, empty if everything does, and the metrics.
func (r *stateRig) lacks(s *serving, want stateTest) (lacks, metrics string) {
	var all []string
	lack := func(where string, so bool, got any) {
		if !so {
			all = append(all, fmt.Sprintf("%s: %+v", where, got))
		}
	}
	if want.gone {
		_, page, err := r.get(s, "/readyz")
		lack("/readyz", err != nil, page)
		answer := runWith(r.t, r.dir, "", r.env, "status", "--server", s.url)
		lack("hapax status", answer.code != 0 && strings.Contains(answer.err, s.url), answer)
		return strings.Join(all, "\n"), ""
	}
	state := want.state
	if state == "" {
		state = "serving"
	}
	wanted := slices.Sorted(slices.Values(want.alarms))
	status, page, err := r.get(s, "/readyz")
	var ready struct {
		Ready, Degraded       bool
		State, Store, Command string
		See                   string
		Alarms                told
	}
	if err == nil {
		err = json.Unmarshal([]byte(page), &ready)
	}
	store := string(want.code)
	if store == "" || state == "leaving" {
		store = "ok"
	}
	lack("/readyz", err == nil && ready.State == state && ready.Ready == !want.unready && (status == http.StatusOK) == !want.unready && ready.Degraded == want.degraded &&
		ready.Store == store && strings.Contains(ready.Command, want.command) && (ready.Command == "") == (want.command == "") && slices.Equal(ready.Alarms.names(), wanted), page)
	if want.code != "" && state != "leaving" { // one trouble has one entry in the runbook, whoever tells of it
		for _, a := range ready.Alarms {
			if slices.Contains([]string{"store_lost", "store_went_back", "not_joined", "disk_full"}, a.Alarm) {
				lack("/readyz, and the alarm "+a.Alarm, ready.See != "" && a.See == ready.See, ready.See+" and "+a.See)
			}
		}
		at := strings.LastIndex(s.logged(), `"msg":"nothing is granted`)
		line, _, _ := strings.Cut(s.logged()[max(at, 0):], "\n")
		lack("the log", at < 0 || !strings.Contains(line, `"do":`) || strings.Contains(line, `"see":"`+ready.See+`"`), line)
	}
	_, metrics, err = r.get(s, "/metrics")
	series := seriesOf(metrics)
	is := func(b bool) float64 { return map[bool]float64{true: 1}[b] }
	for name, value := range map[string]float64{
		"hapax_ready": is(!want.unready), `hapax_state{state="` + state + `"}`: 1, "hapax_store_ok": is(store == "ok"),
	} {
		lack(name, err == nil && series[name] == value, series[name])
	}
	var up []string
	for name, value := range series {
		if alarm, ok := strings.CutPrefix(name, `hapax_alarm{alarm="`); ok && value > 0 {
			up = append(up, strings.TrimSuffix(alarm, `"}`))
		}
	}
	slices.Sort(up)
	lack("hapax_alarm", slices.Equal(up, wanted), up)
	log := s.logged()
	for _, alarm := range wanted {
		lack("the log", strings.Contains(log, `"msg":"alarm raised","alarm":"`+alarm+`"`), "no alarm "+alarm)
		lack("alarm_url", r.alarms.heard(alarm), "no alarm "+alarm)
	}
	lack("the log", strings.Contains(log, want.logged), "lacks "+want.logged)
	if len(all) > 0 {
		return strings.Join(all, "\n"), metrics // a command that asks once more would cost more than all of this
	}
	answer := runWith(r.t, r.dir, "", r.env, "status", "--server", s.url, "--json")
	var st struct {
		State, Code, Do string
		Alarms          told
	}
	_ = json.Unmarshal([]byte(answer.out), &st) // what is wrong with it shows below
	lack("hapax status", st.State == state && st.Code == string(want.code) && (want.beside || strings.Contains(st.Do, want.command)) && slices.Equal(st.Alarms.names(), wanted) &&
		(answer.code == 0) == (want.code == "" && !want.beside), answer)
	return strings.Join(all, "\n"), metrics
}

// TestStates brings a node on a real PostgreSQL into one state after the other.
func TestStates(t *testing.T) {
	t.Parallel()
	server := testservers.SharedPostgres(t)
	scrapes := &scrapes{}
	t.Run("states", func(t *testing.T) {
		for _, test := range slices.Concat(lifeStates, storeStates, fleetStates, lineStates, accessStates, diskStates, foreignStates, rareStates) {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				r := newStateRig(t, server)
				s := test.enter(r)
				lacks, metrics := "", ""
				t.Cleanup(func() {
					if t.Failed() {
						t.Logf("these do not agree:\n%s\nlog:\n%s", lacks, s.logged())
					}
				})
				patience.Until(t, "all tell "+test.name, func() bool {
					lacks, metrics = r.lacks(s, test)
					return lacks == ""
				})
				scrapes.add(test, r.before, seriesOf(metrics))
			})
		}
	})
	scrapes.judge(t)
}

// Settings with which a tag's grants end soon.
const oneByOne = "tags: {orders: {step: 1, max_step: 1}}\n"

var lifeStates = []stateTest{
	{name: "start", enter: func(r *stateRig) *serving {
		s := r.node("a", "")
		r.issues(s, "orders")
		return s
	}, logged: `"msg":"serving"`},
	{name: "restart", enter: func(r *stateRig) *serving {
		s := r.node("a", "")
		r.issues(s, "orders")
		s.stop()
		s = r.node("a", "")
		takeSoon(r.t, s, "orders", 1)
		return s
	}},
	{name: "kill -9", enter: func(r *stateRig) *serving {
		s := r.node("a", "")
		r.issues(s, "orders")
		s.kill()
		s = r.node("a", "")
		takeSoon(r.t, s, "orders", 1)
		return s
	}},
	{name: "SIGSTOP", enter: func(r *stateRig) *serving {
		s := r.node("a", "")
		r.issues(s, "orders")
		r.signal(s, syscall.SIGSTOP)
		patience.Slow(6 * time.Second) // longer than until it has to join again
		r.signal(s, syscall.SIGCONT)
		return s
	}},
	{name: "SIGTERM", state: "leaving", unready: true, code: hapax.ErrClosed.Code(), alerts: []string{"HapaxNotReady", "HapaxNoneReady"}, enter: func(r *stateRig) *serving {
		s := r.node("a", "", "--lame-duck", "1h")
		r.issues(s, "orders")
		r.signal(s, syscall.SIGTERM)
		return s
	}, logged: "about to stop"},
	{name: "data disk full", code: hapax.ErrStoreUnavailable.Code(), degraded: true, command: "hapax doctor", alarms: []string{"disk_full"}, alerts: []string{"HapaxDiskFull", "HapaxCannotIssue"}, enter: func(r *stateRig) *serving {
		s := r.node("a", "tags: {orders: {}, users: {}}\n", "--store", "bolt:")
		r.issues(s, "orders")
		r.limit(s, "10")
		_, _ = take(patient, s.url, "users", 1) // finds out
		return s
	}},
	{name: "witness disk full", code: hapax.ErrWitnessFailed.Code(), degraded: true, command: "make room", alarms: []string{"disk_full"}, alerts: []string{"HapaxDiskFull", "HapaxCannotIssue"}, enter: func(r *stateRig) *serving {
		s := r.node("a", "tags: {orders: {}, users: {}}\n")
		r.issues(s, "orders")
		r.limit(s, "10")
		_, _ = take(patient, s.url, "users", 1) // finds out
		return s
	}},
	{name: "bad reload", alarms: []string{"config_bad"}, alerts: []string{"HapaxConfigBad"}, enter: func(r *stateRig) *serving {
		s := r.node("a", "")
		r.issues(s, "orders")
		if err := os.WriteFile(filepath.Join(r.dir, "a.yaml"), []byte("max_wait: soon\n"), 0o600); err != nil {
			r.t.Fatal(err)
		}
		r.signal(s, syscall.SIGHUP)
		return s
	}, logged: "the configuration cannot be used"},
	{name: "descriptors short", alarms: []string{"connections_refused"}, alerts: []string{"HapaxConnectionsRefused", "HapaxLimitsReached"}, enter: func(r *stateRig) *serving {
		s := r.node("a", "", "--http-connections", "8")
		r.issues(s, "orders")
		r.crowd(s, 40)
		return s
	}},
}

// crowd opens connections that say nothing, and closes them.
func (r *stateRig) crowd(s *serving, n int) {
	r.t.Helper()
	web := &http.Client{Transport: &http.Transport{MaxIdleConns: n, MaxIdleConnsPerHost: n}, Timeout: patience.Long}
	gone := make(chan struct{})
	for range n {
		go func() {
			defer func() { gone <- struct{}{} }()
			if resp, err := web.Get(s.url + "/healthz"); err == nil {
				defer resp.Body.Close()
				patience.Slow(100 * time.Millisecond)
			}
		}()
	}
	for range n {
		<-gone
	}
	web.CloseIdleConnections()
}

var storeStates = []stateTest{
	{
		name: "store read-only", state: "joining", code: hapax.ErrStoreUnsafe.Code(), degraded: true, command: "hapax doctor",
		alarms: []string{"store_lost"}, alerts: []string{"HapaxStoreLost", "HapaxCannotIssue"}, enter: func(r *stateRig) *serving {
			role := strings.TrimSuffix(r.table, "_")
			r.sql("CREATE ROLE "+role+" LOGIN", "GRANT CREATE ON SCHEMA public TO "+role)
			r.store = strings.Replace(r.store, "postgres@", role+"@", 1)
			s := r.node("a", oneByOne)
			r.issues(s, "orders")
			r.sql("ALTER ROLE "+role+" SET default_transaction_read_only = on", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+role+"'")
			return s
		},
	},
	{
		name: "store away", state: "joining", code: hapax.ErrStoreUnavailable.Code(), degraded: true, command: "hapax doctor",
		alarms: []string{"store_lost"}, alerts: []string{"HapaxStoreLost", "HapaxCannotIssue"},
		enter: func(r *stateRig) *serving {
			s := r.node("a", "tags: {orders: {}, users: {}}\n")
			r.issues(s, "orders")
			r.proxy.Cut()
			return s
		},
	},
	{
		name: "store cut off", state: "joining", code: hapax.ErrStoreUnavailable.Code(), degraded: true, command: "hapax doctor",
		alarms: []string{"store_lost"}, alerts: []string{"HapaxStoreLost", "HapaxCannotIssue"},
		enter: func(r *stateRig) *serving {
			s := r.node("a", "tags: {orders: {}, users: {}}\n")
			r.issues(s, "orders")
			r.proxy.Blackhole()
			return s
		},
	},
	{name: "store slow", alerts: []string{"HapaxStoreSlow"}, enter: func(r *stateRig) *serving {
		s := r.node("a", oneByOne+"heartbeat: 5s\nmax_wait: 10s\n")
		r.issues(s, "orders")
		r.proxy.Delay(slow, 0)
		for range 10 {
			_, _ = take(patient, s.url, "orders", 2) // in the first seconds there are grants from before
		}
		return s
	}},
	{name: "store slower than a probe waits", degraded: true, alerts: []string{"HapaxStoreSlow"}, enter: func(r *stateRig) *serving {
		s := r.node("a", oneByOne+"heartbeat: 5s\nmax_wait: 10s\n")
		r.issues(s, "orders")
		r.proxy.Delay(4*slow, 0)
		for range 4 {
			_, _ = take(patient, s.url, "orders", 2)
		}
		return s
	}},
	{name: "store restored, and healed", heals: true, logged: "the store had gone back, and was healed", enter: func(r *stateRig) *serving {
		s := r.node("a", oneByOne)
		mustTakeSoon(r.t, s)
		r.note(s)
		r.goBack(func() { mustTakeSoon(r.t, s) })
		s.await("the store had gone back, and was healed")
		return s
	}},
	{
		name: "fence", heals: true, state: "refusing", unready: true, degraded: true, code: hapax.ErrStoreRolledBack.Code(), command: "hapax adopt",
		alarms: []string{"budget_low", "store_went_back"}, alerts: []string{"HapaxBudgetLow", "HapaxFenced", "HapaxNotReady", "HapaxNoneReady", "HapaxCannotIssue"},
		enter: func(r *stateRig) *serving {
			s := r.node("a", oneByOne, "--heal", "manual")
			mustTakeSoon(r.t, s)
			r.note(s)
			r.goBack(func() { mustTakeSoon(r.t, s) })
			r.drain(s, "orders")
			return s
		},
	},
	{name: "healing", heals: true, logged: "numbers are granted", enter: func(r *stateRig) *serving {
		s := r.node("a", oneByOne, "--heal", "manual")
		mustTakeSoon(r.t, s)
		r.note(s)
		r.goBack(func() { mustTakeSoon(r.t, s) })
		s.await("the store went back")
		patience.Until(r.t, "adopt is taken", func() bool { return run(r.t, r.dir, "adopt", "--server", s.url, "--yes").code == 0 })
		return s
	}},
}

// drain takes numbers until there are none.
func (r *stateRig) drain(s *serving, tag string) {
	r.t.Helper()
	patience.Until(r.t, "nothing is left of "+tag, func() bool {
		_, err := take(patient, s.url, tag, 1)
		return err != nil && !wantsGrant(err) // a grant may only be late
	})
}

// open opens the rig's database without the proxy.
func (r *stateRig) open() *sql.DB {
	r.t.Helper()
	bare, _, _ := strings.Cut(r.plain, "?prefix=")
	bare, _, _ = strings.Cut(bare, "&prefix=")
	db, err := sql.Open("pgx", bare)
	if err != nil {
		r.t.Fatal(err)
	}
	return db
}

// goBack has the store forget what happens.
func (r *stateRig) goBack(happens func()) {
	r.t.Helper()
	db := r.open()
	defer db.Close()
	rows, err := db.Query("SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() AND table_name LIKE $1", r.table+"%")
	if err != nil {
		r.t.Fatal(err)
	}
	var tables []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			r.t.Fatal(err)
		}
		tables = append(tables, name)
	}
	if err := rows.Err(); err != nil || len(tables) == 0 {
		r.t.Fatalf("%d tables: %v", len(tables), err)
	}
	exec := func(statements ...string) {
		r.t.Helper()
		if _, err := db.Exec(strings.Join(statements, "; ")); err != nil { // one transaction
			r.t.Fatal(err)
		}
	}
	var save, restore, drop []string
	for _, name := range tables {
		save = append(save, "CREATE TABLE copy_"+name+" AS TABLE "+name)
		restore = append(restore, "DELETE FROM "+name, "INSERT INTO "+name+" TABLE copy_"+name)
		drop = append(drop, "DROP TABLE copy_"+name)
	}
	exec(save...)
	happens()
	exec(restore...)
	exec(drop...)
}
