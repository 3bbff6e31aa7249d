package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// The answers that every caller of a node must get in a state.
type signals struct {
	state   string
	code    hapax.Code // empty while numbers are granted
	why     string     // a part of it
	command string     // likewise; empty: nothing is needed
	fenced  bool
	ready   bool
}

// A signaller is a node over Redis that stands in for Leaf, too, at an address of its own.
type signaller struct {
	*serving
	dir, leaf string
}

func startSignaller(t *testing.T, dir, url, data string, args ...string) *signaller {
	t.Helper()
	leaf := freeAddress(t)
	file := filepath.Join(dir, data+".yaml")
	config := fmt.Sprintf("compat: {leaf: {http: %s}}\nledger: off\nauto_create: true\ntags: {orders: {step: 1, max_step: 1}}\n", leaf)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir, nil, append([]string{"--config", file, "--store", url, "--data", data, "--max-wait", "100ms"}, args...)...)
	return &signaller{s, dir, "http://" + leaf}
}

// lacks returns what does not tell the state, empty if everything does.
func (s *signaller) lacks(want signals) string {
	s.t.Helper()
	var told []string
	lack := func(where string, so bool, got any) {
		if !so {
			told = append(told, fmt.Sprintf("%s: %+v", where, got))
		}
	}
	for where, url := range map[string]string{"/readyz": s.url, "/readyz of Leaf's address": s.leaf} {
		var r struct {
			Ready, Degraded, Fenced bool
			State, Store, Command   string
			StoreDetail             string `json:"store_detail"`
		}
		status := getJSON(s.t, url+"/readyz", &r)
		is := r.State == want.state && r.Ready == want.ready && (status == 200) == want.ready && r.Fenced == want.fenced && r.Degraded != want.ready
		if want.code == "" || want.state == "leaving" {
			is = is && r.Store == "ok"
		} else {
			is = is && r.Store == string(want.code)
		}
		if want.state == "leaving" {
			is = r.State == want.state && !r.Ready && status == 503
		}
		if url == s.url && want.state != "leaving" {
			is = is && strings.Contains(r.StoreDetail, want.why) && strings.Contains(r.Command, want.command) && (r.Command == "") == (want.command == "")
		}
		lack(where, is, r)
	}
	if want.code != "" && want.state != "leaving" { // it also uses up what is left of grants
		_, err := take(patient, s.url, "orders", 1)
		r, ok := errors.AsType[*refusal](err)
		lack("a request", ok && r.Status == http.StatusServiceUnavailable && (r.Code == want.code || want.fenced && r.Code == hapax.ErrFenced.Code() ||
			r.Code == hapax.ErrRefillPending.Code()), err)
	}
	if len(told) > 0 {
		return strings.Join(told, "\n") // commands that ask once more would cost more than all of this
	}
	status := run(s.t, s.dir, "status", "--server", s.url, "--json")
	var st struct{ State, Code, Why, Do string }
	_ = json.Unmarshal([]byte(status.out), &st) // what is wrong with it shows below
	lack("hapax status", st.State == want.state && st.Code == string(want.code) && strings.Contains(st.Why, want.why) &&
		strings.Contains(st.Do, want.command) && (st.Do == "") == (want.command == "") && (status.code == 0) == (want.code == ""), status)
	nodes := run(s.t, s.dir, "nodes", "--server", s.url, "--json")
	self := ""
	for line := range strings.Lines(nodes.out) {
		var n struct {
			State string
			Self  bool
		}
		if json.Unmarshal([]byte(line), &n) == nil && n.Self {
			self = n.State
		}
	}
	heading := fmt.Sprintf("the server is %s: %s: ", want.state, want.code)
	isTold := strings.Contains(nodes.err, heading) && strings.Contains(nodes.err, want.why) && strings.Contains(nodes.err, want.command)
	isSilent := !strings.Contains(nodes.err, "the server is ") // it may tell of other nodes
	lack("hapax nodes", (self == want.state || self == "") && (isTold || want.code == "" && isSilent), nodes)
	is := func(b bool) float64 { return map[bool]float64{true: 1}[b] }
	for name, value := range map[string]float64{
		"hapax_ready": is(want.ready), "hapax_fenced": is(want.fenced), "hapax_store_ok": is(want.code == "" || want.state == "leaving"),
		`hapax_state{state="` + want.state + `"}`: 1,
	} {
		got := s.metric(name)
		lack(name, got == value, got)
	}
	log := s.logged()
	if want.state == "leaving" {
		lack("log", strings.Contains(log, want.why), log)
		return strings.Join(told, "\n")
	}
	last := log[strings.LastIndex(log, `"msg":"n`)+1:] // "numbers are granted", "nothing is granted"
	last, _, _ = strings.Cut(last, "\n")
	entry := `"state":"` + want.state + `"`
	lack("log", strings.Contains(last, entry) && strings.Contains(last, string(want.code)) && strings.Contains(last, want.why) && strings.Contains(last, want.command), last)
	return strings.Join(told, "\n")
}

func getJSON(t *testing.T, url string, into any) (status int) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w", body, err))
	}
	return resp.StatusCode
}

// agree waits until everything tells the state.
func (s *signaller) agree(what string, want signals) {
	s.t.Helper()
	lacks := ""
	s.t.Cleanup(func() {
		if s.t.Failed() && lacks != "" {
			s.t.Logf("%s: these do not agree:\n%s\nlog:\n%s", what, lacks, s.logged())
		}
	})
	patience.Until(s.t, what, func() bool {
		lacks = s.lacks(want)
		return lacks == ""
	})
}

var serves = signals{state: "serving", ready: true}

// In each state in which a node can be, everything that tells of it names the same state,
// cause and command: /readyz of its own and of a foreign address, the metrics, hapax
// status, hapax nodes, the log and refusals.
func TestSignalsAgree(t *testing.T) {
	t.Parallel()
	t.Run("a fence that waits for a person", func(t *testing.T) {
		t.Parallel()
		store := testservers.Redis(t)
		store.MustControl()
		dir := t.TempDir()
		a := startSignaller(t, dir, store.URL, "a", "--heal", "manual")
		a.agree("it serves", serves)
		mustTakeSoon(t, a.serving)
		goBack(t, store, func() { mustTakeSoon(t, a.serving) })
		fenced := signals{code: hapax.ErrStoreRolledBack.Code(), state: "refusing", why: "heartbeat", command: "hapax adopt", fenced: true}
		a.agree("it refuses", fenced)
		b := startSignaller(t, dir, store.URL, "b", "--heal", "manual")
		fenced.state, fenced.code = "fenced", hapax.ErrFenced.Code()
		b.agree("another one is fenced", fenced)
		if r := speak(t, dir, "adopt", "--server", b.url, "--yes"); r.code != 0 {
			t.Fatalf("adopt: %s%s", r.out, r.err)
		}
		a.agree("it serves again", serves)
		b.agree("the other one serves", serves)
	})
	t.Run("somebody is missing", func(t *testing.T) {
		t.Parallel()
		store := testservers.Redis(t)
		store.MustControl()
		dir := t.TempDir()
		a, gone := startSignaller(t, dir, store.URL, "a"), startSignaller(t, dir, store.URL, "gone")
		mustTakeSoon(t, a.serving)
		goBack(t, store, func() {
			mustTakeSoon(t, gone.serving)
			gone.kill()
		})
		fenced := signals{code: hapax.ErrStoreRolledBack.Code(), state: "refusing", why: "heartbeat", command: "hapax nodes settle", fenced: true}
		a.agree("it names who is missing", fenced)
		b := startSignaller(t, dir, store.URL, "b")
		fenced.state, fenced.code = "fenced", hapax.ErrFenced.Code()
		b.agree("another one names him, too", fenced)
		gone = startSignaller(t, dir, store.URL, "gone")
		for _, n := range []*signaller{a, b, gone} {
			n.agree("it serves again", serves)
		}
	})
	t.Run("a store that is wiped, and another one", func(t *testing.T) {
		t.Parallel()
		store, other := testservers.Redis(t), testservers.Redis(t)
		dir := t.TempDir()
		proxy := testservers.NewProxy(t, store.Addr)
		a := startSignaller(t, dir, proxy.URL(store.URL), "a", "--heal", "manual")
		mustTakeSoon(t, a.serving)
		options, err := redis.ParseURL(store.URL)
		if err != nil {
			t.Fatal(err)
		}
		db := redis.NewClient(options)
		defer db.Close()
		if err := db.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		a.agree("it was wiped", signals{code: hapax.ErrStoreReplaced.Code(), state: "refusing", why: "the store", command: "hapax adopt", fenced: true})
		if r := speak(t, dir, "adopt", "--server", a.url, "--yes"); r.code != 0 {
			t.Fatalf("adopt: %s%s", r.out, r.err)
		}
		a.agree("it serves again", serves)

		b := startSignaller(t, dir, other.URL, "b")
		mustTakeSoon(t, b.serving)
		proxy.Lead(other.Addr)
		a.agree("it meets another store", signals{code: hapax.ErrStoreReplaced.Code(), state: "refusing", why: "this is the store", command: "check the store's URL", fenced: true})
		b.agree("the other store's node serves on", serves)
		proxy.Lead(store.Addr)
		a.agree("it serves once the URL is right", serves)
	})
	t.Run("joining, and leaving", func(t *testing.T) {
		t.Parallel()
		store := testservers.Redis(t)
		dir := t.TempDir()
		silent := startSignaller(t, dir, store.URL, "silent", "--heartbeat", "4s") // others give it 20 s
		mustTakeSoon(t, silent.serving)
		silent.kill()
		a := startSignaller(t, dir, store.URL, "a")
		a.agree("it joins", signals{code: hapax.ErrStoreUnavailable.Code(), state: "joining", why: "joins"})
		a.agree("it serves", serves)
		leaves := startSignaller(t, dir, store.URL, "leaves", "--lame-duck", "1h")
		leaves.agree("it serves", serves)
		if err := leaves.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		leaves.agree("it leaves", signals{code: hapax.ErrClosed.Code(), state: "leaving", why: "about to stop"})
		leaves.kill()
	})
	t.Run("a full disk under the witness", func(t *testing.T) {
		t.Parallel()
		testservers.Require(t, []string{"prlimit"})
		store := testservers.Redis(t)
		a := startSignaller(t, t.TempDir(), store.URL, "a")
		mustTakeSoon(t, a.serving)
		limit := func(bytes string) {
			if out, err := exec.Command("prlimit", "--pid", strconv.Itoa(a.cmd.Process.Pid), "--fsize="+bytes+":").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		limit("10")
		_, _ = take(patient, a.url, "orders", 1) // finds out
		a.agree("the disk is full", signals{code: hapax.ErrWitnessFailed.Code(), state: "serving", why: "witness", command: "make room"})
		limit("unlimited")
		a.agree("there is room again", serves)
		takeSoon(t, a.serving, "orders", 1, hapax.ErrWitnessFailed.Code()) // an attempt from before may still tell
	})
}

// mustTakeSoon takes more than is in hand, so that the store grants something.
func mustTakeSoon(t *testing.T, s *serving) {
	t.Helper()
	for range 5 {
		takeSoon(t, s, "orders", 1)
	}
}

// goBack makes a copy of a store, has something happen, and puts the copy back.
func goBack(t *testing.T, store *testservers.Server, happens func()) {
	t.Helper()
	store.Stop()
	backup := filepath.Join(t.TempDir(), "copy")
	copyData(t, store.Dir, backup)
	store.Start()
	happens()
	store.Kill()
	copyData(t, backup, store.Dir)
	store.Start()
}
