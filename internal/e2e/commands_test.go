package e2e

import (
	"flag"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestHelp(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"hapax": {"--help"},
		"next":  {"next", "--help"},
		"tags":  {"tags", "--help"},
		"store": {"store", "--help"},
		"copy":  {"store", "copy", "--help"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ok(t, t.TempDir(), args...)
			golden := filepath.Join("testdata", "help-"+name+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the help is not that of %s:\n%s", golden, got)
			}
		})
	}
}

func TestParseAndMake(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tests := []struct {
		make []string
		id   string
		json string
	}{
		{
			[]string{"--time", "2026-01-02T03:04:05.678Z", "--worker", "7", "--sequence", "9"},
			"2006924430235693065",
			`{"id":"2006924430235693065","layout":"leaf","time":"2026-01-02T03:04:05.678Z","fields":{"time":478488071021,"worker":7,"sequence":9}}`,
		},
		{
			[]string{"--layout", "uidgenerator-28-22-13", "--time", "1"},
			"34359738368",
			`{"id":"34359738368","layout":"uidgenerator-28-22-13","time":"2016-05-19T16:00:01Z","fields":{"time":1,"worker":0,"sequence":0}}`,
		},
		{
			[]string{"--layout", "vesta-max-peak", "--time", "1", "--worker", "3", "version=1", "type=1"},
			"-4611686017353646077",
			`{"id":"-4611686017353646077","layout":"vesta-max-peak","time":"2014-12-31T16:00:01Z","fields":{"version":1,"type":1,"genMethod":0,"time":1,"sequence":0,"machine":3}}`,
		},
		{
			[]string{"--layout", "vesta-max-peak", "--time", "1", "machine=3", "sequence=5"},
			"1073746947",
			`{"id":"1073746947","layout":"vesta-max-peak","time":"2014-12-31T16:00:01Z","fields":{"version":0,"type":0,"genMethod":0,"time":1,"sequence":5,"machine":3}}`,
		},
		{
			[]string{"--layout", "time:41,sequence:10,unit=10ms,epoch=2020-01-01T00:00:00Z", "--time", "2020-01-01T00:00:01Z"},
			"102400",
			`{"id":"102400","layout":"time:41,sequence:10,unit=10ms,epoch=2020-01-01T00:00:00Z","time":"2020-01-01T00:00:01Z","fields":{"time":100,"sequence":0}}`,
		},
	}
	for _, test := range tests {
		t.Run(test.id, func(t *testing.T) {
			if got := ok(t, dir, append([]string{"make"}, test.make...)...); got != test.id+"\n" {
				t.Errorf("made %s, want %s", got, test.id)
			}
			layout := "leaf"
			if test.make[0] == "--layout" {
				layout = test.make[1]
			}
			if got := ok(t, dir, "parse", test.id, "--json", "--layout", layout); got != test.json+"\n" {
				t.Errorf("parsed as %s, want %s", got, test.json)
			}
			r := runWith(t, dir, test.id+"\n\n "+test.id+"\n", nil, "parse", "--json", "--layout="+layout, "-")
			if r.code != 0 || r.out != strings.Repeat(test.json+"\n", 2) {
				t.Errorf("parsed from standard input as %s%s, want it twice", r.out, r.err)
			}
		})
	}
}

func TestLayouts(t *testing.T) {
	t.Parallel()
	lines := strings.Split(strings.TrimSpace(ok(t, t.TempDir(), "layouts")), "\n")
	if len(lines) != 10 {
		t.Errorf("%d layouts, want 10", len(lines))
	}
	want := "js-safe-53\ttime:41,worker:3,sequence:9\t2020-01-01T00:00:00Z\t1ms\t2089-09-06\t8\t512000"
	if last := lines[len(lines)-1]; last != want {
		t.Errorf("the last is %q, want %q", last, want)
	}
	spec := "time:31,worker:10,sequence:22,unit=1h,epoch=2020-01-01T00:00:00Z"
	got := ok(t, t.TempDir(), "layouts", "--json", spec)
	if !strings.HasPrefix(got, `{"spec":"`+spec+`","epoch":"2020-01-01T00:00:00Z","unit":"1h","ends":"`) {
		t.Errorf("%s is described as %s", spec, got)
	}
}

func TestVersionAndCompletion(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"version", "--version"} {
		if got := ok(t, t.TempDir(), version); !strings.HasPrefix(got, "hapax ") {
			t.Errorf("the version is %q", got)
		}
	}
	if got := ok(t, t.TempDir(), "completion", "bash"); !strings.Contains(got, "__start_hapax") {
		t.Error("no completion for bash")
	}
	if r := run(t, t.TempDir(), "__complete", "parse", "--layout", "v"); !strings.Contains(r.out, "vesta-max-peak\n") {
		t.Errorf("completion does not know the layouts: %q", r.out)
	}
}

// One-shot commands on a store take what they print, and never the same twice.
func TestNextOnStore(t *testing.T) {
	t.Parallel()
	for name, where := range map[string][]string{
		"data":  {"--data", "d"},
		"store": {"--store", "bolt:numbers.db", "--config", "hapax.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "hapax.yaml"), []byte("max_tags: 5\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			next := func(args ...string) string {
				return ok(t, dir, append(append([]string{"next"}, args...), where...)...)
			}
			if got := next("orders"); got != "1\n" {
				t.Errorf("the first number is %q", got)
			}
			if got := next("orders", "-n", "3"); got != "2\n3\n4\n" {
				t.Errorf("then came %q, want 2, 3, 4", got)
			}
			if got := next("orders", "-n", "2", "--json"); got != `{"ids":["5","6"]}`+"\n" {
				t.Errorf("then came %q, want 5 and 6", got)
			}
			last := int64(0)
			for range 3 {
				for line := range strings.Lines(next("snowflake", "-n", "5")) {
					id, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
					if err != nil || id <= last {
						t.Fatalf("after %d came %q", last, line)
					}
					last = id
				}
			}
		})
	}
}

// Commands that run at the same time take turns on a data directory.
func TestNextConcurrently(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const commands = 8
	results := make(chan string, commands)
	for range commands {
		go func() { results <- run(t, dir, "next", "orders", "-n", "10", "--data", "d").out }()
	}
	seen := map[string]bool{}
	for range commands {
		for line := range strings.Lines(<-results) {
			if seen[line] {
				t.Errorf("%q came twice", line)
			}
			seen[line] = true
		}
	}
	if len(seen) != commands*10 {
		t.Errorf("%d numbers, want %d", len(seen), commands*10)
	}
}

// tagsSession is what one can do to tags, with the same outcome on a server and
// on a store.
var tagsSession = []struct {
	args string
	out  string
	err  string
}{
	{args: "tags create a/b%20é --step 50", out: "a/b%20é\tsegment\t1\t50\t50\t1000000\t-\t-\tlive\n"},
	{args: "tags create a/b%20é", err: `hapax: the tag exists already: "a/b%20é"; hapax tags show 'a/b%20é' tells what it is, and hapax tags set 'a/b%20é' changes it`},
	{args: "tags create s --kind snowflake", out: "s\tsnowflake\t-\t-\t-\t-\tdefault\t-\tlive\n"},
	{args: "tags create x --kind other", err: `hapax: invalid kind "other": want "segment" or "snowflake"`},
	{args: "tags create x --step 0", err: "hapax: invalid --step 0: want more than 0"},
	{args: "tags create x --start -1", err: "hapax: invalid start -1: want 1 to 9223372032559808511"},
	{args: "tags create x --step 10 --max-step 5", err: "hapax: invalid max_step 5: want step (10) to 1099511627776"},
	{args: "tags set a/b%20é --floor 1000 --step 7", out: "a/b%20é\tsegment\t1000\t7\t7\t1000000\t-\t-\tlive\n"},
	{args: "tags set a/b%20é --floor 10", out: "a/b%20é\tsegment\t1000\t7\t7\t1000000\t-\t-\tlive\n"},
	{args: "tags set a/b%20é --step 0", err: "hapax: invalid step 0: want 1 to 1099511627776"},
	{args: "tags set a/b%20é", err: "hapax: nothing to change; give --step, --min-step, --max-step, --floor, --floor-from or --code"},
	{args: "tags set s --step 5", err: `hapax: the tag is frozen as another kind: "s" is a snowflake tag and has no step or floor`},
	{args: "tags set none --step 5", err: `hapax: the tag does not exist: "none"; hapax tags create none makes it, and hapax tags list shows those that there are`},
	{args: "next a/b%20é", out: "1000\n"},
	{args: "tags delete s", out: "s\tsnowflake\t-\t-\t-\t-\tdefault\t-\tdeleted\n"},
	{args: "tags delete s", err: `hapax: the tag was deleted; create it explicitly to resume above its mark: "s"`},
	{args: "next s", err: `hapax: the tag was deleted; create it explicitly to resume above its mark: "s"`},
	{args: "tags show none", err: `hapax: the tag does not exist: "none"; hapax tags create none makes it, and hapax tags list shows those that there are`},
	{args: "tags show s --json", out: `{"name":"s","kind":"snowflake","pool":"default","deleted":true}` + "\n"},
}

func TestTags(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"store", "server"} {
		t.Run(where, func(t *testing.T) {
			dir := t.TempDir()
			target := []string{"--store", "bolt:t.db"}
			if where == "server" {
				target = []string{"--server", serve(t, dir, nil).url}
			}
			for _, step := range tagsSession {
				r := run(t, dir, append(strings.Fields(step.args), target...)...)
				if r.out != step.out || strings.TrimSpace(r.err) != step.err || (r.code == 0) != (step.err == "") {
					t.Errorf("hapax %s: exit code %d\n%s%s\nwant\n%s%s", step.args, r.code, r.out, r.err, step.out, step.err)
				}
			}
			list := ok(t, dir, append([]string{"tags", "list"}, target...)...)
			all := ok(t, dir, append([]string{"tags", "list", "--all"}, target...)...)
			if strings.Contains(list, "deleted") || !strings.Contains(list, "a/b%20é") || !strings.Contains(all, "s\tsnowflake") {
				t.Errorf("the tags are listed as\n%s and with --all as\n%s", list, all)
			}
		})
	}
}

// Commands that only ask a server find the one in the data directory, as those do
// that could work on the data themselves.
func TestServerInDataDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir, nil)
	for _, command := range [][]string{{"status"}, {"nodes"}, {"plugins", "list"}, {"status", "--data", "hapax-data"}} {
		ok(t, dir, command...)
	}
	if r := run(t, dir, "status", "--data", "hapax-data", "--server", s.url); r.code != 2 {
		t.Errorf("--data and --server together: exit code %d, %s", r.code, r.err)
	}
	s.kill()
	if r := run(t, dir, "status", "--data", "hapax-data"); r.code != 1 || !strings.Contains(r.err, "no server answers in the data directory hapax-data") {
		t.Errorf("status of a server that was killed: exit code %d, %s", r.code, r.err)
	}
}

// A worker ID that is retired has no holder any more and keeps its mark.
func TestRetireWorker(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"store", "server"} {
		t.Run(where, func(t *testing.T) {
			dir := t.TempDir()
			target := []string{"--data", "hapax-data"}
			// It may use no other worker ID when its own is retired, and extends no grant meanwhile.
			s := serve(t, dir, nil, "--pools", "{default: {workers: 0, grant: 1h, max_grant: 1h}}")
			ok(t, dir, "next", "snowflake", "--server", s.url)
			if where == "store" {
				s.kill()
			} else {
				target = []string{"--server", s.url}
			}
			do := func(args ...string) result { return run(t, dir, append(args, target...)...) }
			before := strings.Split(do("workers", "list").out, "\t")
			after := strings.Split(do("workers", "retire", "default", "0").out, "\t")
			if len(before) != 8 || before[3] != "held" || before[7] == "-\n" || len(after) != 8 || after[3] != "retired" || after[4] != before[4] || after[7] != "-\n" {
				t.Errorf("the worker was %q and is %q", before, after)
			}
			for _, test := range []struct {
				args []string
				code int
				err  string
			}{
				{[]string{"default", "1"}, 2, `hapax: invalid worker 1: want a worker ID of pool "default" that was used`},
				{[]string{"default", "x"}, 2, `hapax: invalid worker "x": want a worker ID, which is 0 or more`},
				{[]string{"none", "0"}, 1, `hapax: the worker pool does not exist: "none" is not in the store, which gets it when one of its tags first issues, or from hapax pools create`},
			} {
				if r := do(append([]string{"workers", "retire"}, test.args...)...); r.code != test.code || r.err != test.err+"\n" {
					t.Errorf("retire %q: exit code %d, %s", test.args, r.code, r.err)
				}
			}
			if r := do("workers", "show", "none", "0"); r.code != 1 || !strings.Contains(r.err, `"none" is not in the store`) {
				t.Errorf("show of an unknown pool: %+v", r)
			}
			if got := do("workers", "show", "default", "1").out; got != "default\t1\t-\tfree\t-\t-\t0\t-\n" {
				t.Errorf("a worker ID that was never used is %q", got)
			}
		})
	}
}

// Without flags the commands find the server that runs in the data directory.
func TestFindsServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, dir, nil)
	if got := ok(t, dir, "next", "orders", "-n", "2"); got != "1\n2\n" {
		t.Errorf("the first numbers are %q", got)
	}
	if got := ok(t, dir, "next", "orders"); got != "3\n" { // of the same segment: it was the server
		t.Errorf("the next number is %q", got)
	}
	ok(t, dir, "next", "snowflake")
	if got := ok(t, dir, "workers", "list"); !strings.HasPrefix(got, "default\t0\t") {
		t.Errorf("the workers are %q", got)
	}
	if code := s.stop(); code != 0 {
		t.Errorf("the server's exit code is %d: %s", code, s.logged())
	}
	if got := ok(t, dir, "next", "orders"); got != "4\n" { // the store: the server has handed back what it did not issue
		t.Errorf("the number after the server is %q", got)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 129)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	address := busy.Addr().String()
	tests := []struct {
		name string
		args []string
		code int
		err  string
	}{
		{"unknown command", []string{"nxt"}, 2, `hapax: there is no command "nxt" (did you mean next?); see hapax --help`},
		{"unknown flag", []string{"next", "orders", "--cout", "3"}, 2, `hapax: unknown flag: --cout (did you mean --code?); see hapax next --help`},
		{"argument missing", []string{"next"}, 2, `hapax: missing argument; usage: hapax next TAG [flags]`},
		{"argument too many", []string{"tags", "show", "a", "b"}, 2, `hapax: unexpected argument "b"; usage: hapax tags show TAG [flags]`},
		{"unknown subcommand", []string{"tags", "lisst"}, 2, `hapax: there is no command "tags lisst" (did you mean list?); hapax tags has create, delete, list, set, show; see hapax tags --help`},
		{"unknown subcommand of a command", []string{"nodes", "setle"}, 2, `hapax: unexpected argument "setle" (did you mean settle?); usage: hapax nodes [flags]`},
		{"unknown layout", []string{"parse", "1", "--layout", "leaff"}, 2, `hapax: invalid layout "leaff": want one of leaf, uidgenerator-28-22-13, uidgenerator-29-21-13, vesta-max-peak, vesta-min-granularity, vesta-legacy-max-peak, vesta-legacy-min-granularity, cosid-millisecond, cosid-second, js-safe-53, or a spec such as time:41,worker:10,sequence:12,unit=1ms,epoch=2020-01-01T00:00:00Z`},
		{"bad layout spec", []string{"layouts", "time:99"}, 2, `hapax: invalid layout field "time:99": want name:bits with 1 to 62 bits`},
		{"not an ID", []string{"parse", "12x"}, 2, `hapax: invalid id "12x": want a decimal integer of 64 bits with its sign, without a plus or leading zeros`},
		{"ID too large", []string{"parse", "9223372036854775808"}, 2, `hapax: invalid id "9223372036854775808": want a decimal integer of 64 bits with its sign, without a plus or leading zeros`},
		{"negative ID of 63 bits", []string{"parse", "-5"}, 2, `hapax: invalid id -5: want 0 to 9223372036854775807 in this layout of 63 bits`},
		{"time missing", []string{"make"}, 2, `hapax: missing --time; usage: hapax make --time T [FIELD=VALUE...] [flags]`},
		{"not a time", []string{"make", "--time", "now"}, 2, `hapax: invalid time "now": want RFC 3339, such as 2026-01-02T03:04:05.678Z, or the value of the time field`},
		{"time before the epoch", []string{"make", "--time", "2000-01-01T00:00:00Z"}, 2, `hapax: invalid time "2000-01-01T00:00:00Z": want the layout's epoch 2010-11-04T01:42:54.657Z or later`},
		{"field overflow", []string{"make", "--time", "1", "--worker", "1024"}, 2, `hapax: invalid worker 1024: want 0 to 1023`},
		{"negative field", []string{"make", "--time", "1", "--sequence", "-1"}, 2, `hapax: invalid sequence -1: want 0 to 4095`},
		{"unknown field", []string{"make", "--time", "1", "type=1"}, 2, `hapax: invalid field "type": want one of time, worker, sequence`},
		{"field twice", []string{"make", "--time", "1", "--worker", "1", "worker=1"}, 2, `hapax: invalid field "worker": want each field once`},
		{"not a field", []string{"make", "--time", "1", "type"}, 2, `hapax: invalid field "type": want FIELD=VALUE with an integer`},
		{"count of zero", []string{"next", "a", "-n", "0", "--data", "d"}, 2, `hapax: invalid -n 0: want 1 to 1000000`},
		{"negative count", []string{"next", "a", "-n", "-1", "--data", "d"}, 2, `hapax: invalid -n -1: want 1 to 1000000`},
		{"huge count", []string{"next", "a", "-n", "1000001", "--data", "d"}, 2, `hapax: invalid -n 1000001: want 1 to 1000000`},
		{"empty tag", []string{"next", "", "--data", "d"}, 2, `hapax: missing tag: want valid UTF-8 of 1 to 128 bytes without control or invisible characters`},
		{"long tag", []string{"next", long, "--data", "d"}, 2, `hapax: invalid tag "` + long + `": want valid UTF-8 of 1 to 128 bytes without control or invisible characters`},
		{"control characters", []string{"next", "a\x1bb\n", "--data", "d"}, 2, `hapax: invalid tag "a\x1bb\n": want valid UTF-8 of 1 to 128 bytes without control or invisible characters`},
		{"not UTF-8", []string{"next", "\xff", "--data", "d"}, 2, `hapax: invalid tag "\xff": want valid UTF-8 of 1 to 128 bytes without control or invisible characters`},
		{"server and store", []string{"next", "a", "--server", "http://h", "--store", "memory:"}, 2, `hapax: --server and --store exclude each other`},
		{"unknown store", []string{"next", "a", "--store", "oracle://u:secret@h"}, 2, `hapax: invalid --store (not a URL of a store): want one of bolt:PATH, `},
		{"not a server URL", []string{"next", "a", "--server", "localhost:8080"}, 2, `hapax: invalid server "localhost:8080": want a URL of a scheme, a host and a port, such as http://127.0.0.1:8080`},
		{"no server", []string{"next", "a", "--server", "http://127.0.0.1:1"}, 1, `hapax: the server at http://127.0.0.1:1 cannot be reached: dial tcp 127.0.0.1:1: connect: connection refused`},
		{"no data directory to adopt", []string{"adopt", "--data", "none"}, 2, `hapax: invalid data "none": want the data directory of a node: no such file or directory`},
		{"data directory not writable", []string{"serve", "--data", "file/d", "--http", "127.0.0.1:0"}, 1, `hapax: the data directory file/d cannot be written; choose another with --data: not a directory`},
		{"port in use", []string{"serve", "--http", address}, 1, `hapax: the address ` + address + ` is in use by another process; stop it, or choose another address with --http`},
		{"not an address", []string{"serve", "--http", "nowhere"}, 2, `hapax: invalid http "nowhere": want an address of this machine as HOST:PORT, such as 127.0.0.1:8080`},
		{"beyond loopback", []string{"serve", "--http", "0.0.0.0:0"}, 2, `hapax: invalid http "0.0.0.0:0": want an address on loopback, such as 127.0.0.1:8080, because nobody is asked for credentials; tokens or --allow-unauthenticated lift this`},
		{"not a number", []string{"next", "a", "-n", "abc"}, 2, `hapax: invalid -n "abc": want an integer of 64 bits, without point or exponent`},
		{"missing store file", []string{"next", "a", "--store", "bolt:none/x.db"}, 1, `hapax: a file does not exist: open none/x.db: no such file or directory`},
		{"password in two readings", []string{"serve", "--print-config", "--store", "mysql://u:S3?cr@host/db"}, 2, `hapax: invalid --store (a mysql URL with an @ behind a / or ?): want mysql://USER:PASSWORD@HOST:PORT/… with ? # / @ and % in names and passwords written as %3F %23 %2F %40 and %25; or give the password in store_password_file or $HAPAX_STORE_PASSWORD`},
		{"misspelt pool", []string{"serve", "--tags", "{u: {kind: snowflake, pool: nopool}}", "--pools", "{nopol: {}}"}, 2, `hapax: invalid tags.u.pool "nopool": want a pool that is configured under pools (default, nopol)`},
		{"print-config, misspelt pool", []string{"serve", "--print-config", "--tags", "{u: {kind: snowflake, pool: nopool}}"}, 2, `hapax: invalid tags.u.pool "nopool": want a pool that is configured under pools (default)`},
		{"print-config, beyond loopback", []string{"serve", "--print-config", "--http", "0.0.0.0:80"}, 2, `hapax: invalid http "0.0.0.0:80": want an address on loopback, such as 127.0.0.1:8080, because nobody is asked for credentials; tokens or --allow-unauthenticated lift this`},
		{"print-config, no certificate", []string{"serve", "--print-config", "--tls-cert", "none.pem", "--tls-key", "none.pem"}, 2, `hapax: invalid tls_cert "none.pem": want a file in PEM form that can be read: no such file or directory`},
		{"bare duration", []string{"serve", "--pools", "{default: {lease: 30}}"}, 2, `hapax: invalid pools.default.lease 30: want a duration with its unit, such as 10s`},
		{"bare epoch", []string{"layouts", "time:41,worker:10,sequence:12,epoch=2020"}, 2, `hapax: invalid layout epoch "2020": want an instant of the years 1 to 9998 with at most millisecond precision, `},
		{"bad setting", []string{"serve", "--max-wait", "soon"}, 2, `hapax: invalid --max-wait "soon": want a duration with its unit, such as 10s, from 1ms to 1h`},
		{"bad pool", []string{"serve", "--pools", "{p: {layout: leaff}}"}, 2, `hapax: invalid pools.p.layout "leaff": want one of leaf, `},
		{"workers beyond the layout", []string{"serve", "--pools", "{p: {workers: 0-4999}}"}, 2, `hapax: invalid pools.p.workers 0-4999: want a range of worker IDs within 0 to 1023, which the layout leaf has; if the pool has another layout, set layout beside workers`},
		{"lease out of range", []string{"serve", "--pools", "{p: {lease: 48h}}"}, 2, `hapax: invalid pools.p.lease 48h: want 1s to 24h`},
		{"no digest", []string{"serve", "--tokens", "{a: {}}"}, 2, `hapax: missing tokens.a.hash: want sha256: and 64 hexadecimal digits, as hapax token new prints them`},
		{"no data directory", []string{"serve", "--data", ""}, 2, `hapax: missing --data: want a directory`},
		{"bad tag", []string{"serve", "--tags", "{a: {kind: k}}"}, 2, `hapax: invalid tags.a.kind "k": want "segment" or "snowflake"`},
		{"unknown key", []string{"serve", "--tags", "{a: {stp: 1}}"}, 2, `hapax: --tags: there is no setting tags.a.stp; did you mean tags.a.step?`},
		{"no configuration file", []string{"serve", "--config", "none.yaml"}, 2, `hapax: invalid --config "none.yaml": want a file of YAML that can be read: no such file or directory`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := run(t, dir, test.args...)
			got, exact := strings.TrimSuffix(r.err, "\n"), !strings.HasSuffix(test.err, ", ")
			if r.code != test.code || r.out != "" || got != test.err && (exact || !strings.HasPrefix(got, test.err)) {
				t.Errorf("exit code %d, want %d\n%s%s\nwant\n%s", r.code, test.code, r.out, r.err, test.err)
			}
			if strings.Count(r.err, "\n") != 1 {
				t.Errorf("the error is not one line: %q", r.err)
			}
		})
	}
}

// A data directory that was spoilt is refused in one line that tells why.
func TestBadStores(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(t *testing.T, dir string)
		data  string
		err   *regexp.Regexp
	}{
		{
			"corrupted store",
			func(t *testing.T, dir string) {
				overwrite(t, filepath.Join(dir, "d", "hapax.db"), 0, strings.Repeat("?", 1<<15))
			},
			"d", regexp.MustCompile(`^hapax: the store's data cannot be understood: .*hapax\.db`),
		},
		{
			"truncated store",
			func(t *testing.T, dir string) {
				if err := os.Truncate(filepath.Join(dir, "d", "hapax.db"), 3*4096); err != nil {
					t.Fatal(err)
				}
			},
			"d", regexp.MustCompile(`^hapax: the store's data cannot be understood: .*hapax\.db`),
		},
		{
			"corrupted witness",
			func(t *testing.T, dir string) { overwrite(t, filepath.Join(dir, "d", "witness"), 0, "????") },
			"d", regexp.MustCompile(`^hapax: the store's data cannot be understood: .*witness`),
		},
		{
			"corrupted instance",
			func(t *testing.T, dir string) { overwrite(t, filepath.Join(dir, "d", "instance"), 0, "????") },
			"d", regexp.MustCompile(`^hapax: the store's data cannot be understood: d/instance does not hold an instance ID; remove the file`),
		},
		{
			"copied data directory",
			func(t *testing.T, dir string) {
				if err := os.CopyFS(filepath.Join(dir, "copy"), os.DirFS(filepath.Join(dir, "d"))); err != nil {
					t.Fatal(err)
				}
			},
			"copy", regexp.MustCompile(`^hapax: the store's files were copied or moved to another machine; see hapax adopt: copy/hapax\.db: `),
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			ok(t, dir, "next", "orders", "--data", "d")
			test.spoil(t, dir)
			commands := [][]string{{"serve", "--http", "127.0.0.1:0"}, {"next", "orders"}}
			for _, args := range commands {
				r := run(t, dir, append(args, "--data", test.data)...)
				if r.code != 1 || r.out != "" || !test.err.MatchString(r.err) || strings.Count(r.err, "\n") != 1 {
					t.Errorf("hapax %s: exit code %d\n%s%s\nwant 1 and one line like %s", args[0], r.code, r.out, r.err, test.err)
				}
			}
		})
	}
}

func overwrite(t *testing.T, path string, at int64, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(text), at); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// A copy that is adopted goes on above the original by the margin. A store that was lost
// goes on above what the witness knows, and asks nobody.
func TestAdopt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ok(t, dir, "next", "orders", "-n", "5", "--data", "d")
	if err := os.CopyFS(filepath.Join(dir, "copy"), os.DirFS(filepath.Join(dir, "d"))); err != nil {
		t.Fatal(err)
	}
	if r := run(t, dir, "adopt", "--data", "copy"); r.code != 2 || !strings.Contains(r.err, "--yes") {
		t.Errorf("without --yes: exit code %d, %s", r.code, r.err)
	}
	r := run(t, dir, "adopt", "--data", "copy", "--margin", "100", "--yes")
	if r.code != 0 || r.out != "tag orders\t6\t106\n" {
		t.Fatalf("exit code %d\n%s%s", r.code, r.out, r.err)
	}
	if got := ok(t, dir, "next", "orders", "--data", "copy"); got != "106\n" {
		t.Errorf("the copy's next number is %q", got)
	}
	ids := [2]string{}
	for i, name := range []string{"d", "copy"} {
		id, err := os.ReadFile(filepath.Join(dir, name, "instance"))
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = string(id)
	}
	if ids[0] == ids[1] {
		t.Error("the copy has the original's identity")
	}

	if err := os.Remove(filepath.Join(dir, "copy", "hapax.db")); err != nil {
		t.Fatal(err)
	}
	// Where healing takes longer than the node waits for its store, whatever changes something waits for it.
	late := []string{"HAPAX_TEST_HEAD_START=1ns"}
	for _, args := range []string{"tags set orders --step 5", "tags create more", "pools create p"} {
		if r := runWith(t, dir, "", late, append(strings.Fields(args), "--data", "copy")...); r.code != 0 {
			t.Errorf("after the loss %q: %+v", args, r)
		}
		if err := os.Remove(filepath.Join(dir, "copy", "hapax.db")); err != nil {
			t.Fatal(err)
		}
	}
	if r := runWith(t, dir, "", late, "next", "orders", "--data", "copy"); r.out != "107\n" {
		t.Errorf("the next number after the loss is %q, %s", r.out, r.err)
	}
	if r := run(t, dir, "adopt", "--data", "copy", "--yes"); r.code != 0 || !strings.Contains(r.err, "nothing is wrong") {
		t.Errorf("adopt after that: exit code %d\n%s%s", r.code, r.out, r.err)
	}
}

// After an embedded store was lost, snowflakes are issued at once, and not from the time
// that the lost store had granted.
func TestLostWorkers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{"--pools", "{default: {grant: 1h, max_grant: 1h}}", "--max-wait", "2s"}
	s := serve(t, dir, nil, args...)
	last := mustTake(t, s, "snowflake", 1)[0]
	s.kill() // an hour of worker 0 is granted
	if err := os.Remove(filepath.Join(dir, "hapax-data", "hapax.db")); err != nil {
		t.Fatal(err)
	}
	env := []string{"HAPAX_POOLS={}", "HAPAX_TEST_HEAD_START=1ns"}
	r := runWith(t, dir, "", env, "next", "snowflake")
	if got := strings.TrimSpace(r.out); len(got) != len(last.String()) || got <= last.String() {
		t.Errorf("after %d and the loss came %q, %s", last, got, r.err)
	}
}

func TestConfigPrecedence(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "hapax.yaml")
	if err := os.WriteFile(file, []byte("max_count: 1\nmax_tags: 1\ndrain: 1s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"HAPAX_CONFIG=" + file, "HAPAX_MAX_COUNT=2", "HAPAX_MAX_TAGS=2", "HAPAX_STORE=mysql://u:secret@h/db"}
	first := runWith(t, dir, "", env, "serve", "--max-count", "3", "--print-config")
	for _, line := range []string{"max_count: 3\n", "max_tags: 2\n", "drain: 1s\n", "max_wait: 2s\n", "store: mysql://u:xxxxx@h/db\n"} {
		if !strings.Contains(first.out, "\n"+line) {
			t.Errorf("%q is not in\n%s", line, first.out)
		}
	}
	again := runWith(t, dir, first.out, nil, "serve", "--config", "/dev/stdin", "--print-config")
	if again.code != 0 || again.out != first.out {
		t.Errorf("read back as\n%s%s\nwant\n%s", again.out, again.err, first.out)
	}
}
