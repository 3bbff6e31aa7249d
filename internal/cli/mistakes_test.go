package cli

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"
)

// mistakes are what people got wrong when they tried the command for real, and more of the
// kind. A word KEY=VALUE before the command is a variable; --config names what config is.
var mistakes = []struct {
	name, config, args string
	code               int
	want               []string // field, value, what is allowed or what to do
}{
	// Met by those who used it.
	{name: "a misspelt variable", args: "HAPAX_HTP=1 serve --check --store memory: --http 127.0.0.1:0 --resp=", want: []string{"HAPAX_HTP", "did you mean HAPAX_HTTP", "correct or unset"}},
	{name: "a database of Redis", args: "serve --check --store redis://h/abc", code: 2, want: []string{"database", `"abc"`, "a number", "/0"}},
	{name: "no number to trace", args: "trace abc", code: 2, want: []string{"id", `"abc"`, "decimal integer"}},
	{name: "a trace where there is no data", args: "HAPAX_HTTP=127.0.0.1:1 trace 5", code: 1, want: []string{"127.0.0.1:1", "hapax-data", "--server"}},
	{name: "a tag that there is not, to change", args: "tags set nope --step 5 --store memory:", code: 1, want: []string{`"nope"`, "hapax tags create nope"}},
	{name: "... to show", args: "tags show nope --store memory:", code: 1, want: []string{`"nope"`, "hapax tags list"}},
	{name: "... to delete", args: "tags delete nope --store memory:", code: 1, want: []string{`"nope"`, "hapax tags list"}},
	{name: "a subcommand that there is not", args: "token create", code: 2, want: []string{`"token create"`, "hapax token has new"}},
	{name: "its help", args: "token create --help", code: 2, want: []string{`"token create"`, "hapax token has new"}},
	{name: "the help of a command that there is not", args: "cluster --help", code: 2, want: []string{`"cluster"`, "hapax --help"}},
	{name: "a certificate alone", args: "serve --check --tls-cert c.pem", code: 2, want: []string{"tls_key is missing", "both"}},
	{name: "a key alone", args: "serve --check --tls-key k.pem", code: 2, want: []string{"tls_cert is missing", "both"}},
	{name: "an authority alone", args: "serve --check --tls-client-ca ca.pem", code: 2, want: []string{"tls_cert and tls_key are missing"}},
	{name: "no file to audit", args: "audit nofile", code: 2, want: []string{"file", `"nofile"`, "no such file", "standard input"}},

	// URLs, all of which shows without connecting.
	{name: "a parameter of Redis", args: "serve --check --store redis://h/0?foo=1", code: 2, want: []string{"store URL parameter", `"foo"`, "read_timeout"}},
	{name: "its value", args: "serve --check --store redis://h/0?read_timeout=abc", code: 2, want: []string{"store URL parameter read_timeout", "(not shown)", "a duration with its unit"}},
	{name: "replicas to wait for", args: "serve --check --store redis://h/0?wait=x", code: 2, want: []string{"wait", `"x"`, "0 to 100"}},
	{name: "no master for Sentinels", args: "serve --check --store redis+sentinel://h/", code: 2, want: []string{"store", "master name"}},
	{name: "a database of a Cluster", args: "serve --check --store redis+cluster://h/3", code: 2, want: []string{"store", "Cluster does not have"}},
	{name: "a database of a socket", args: "serve --check --store unix:///s?db=abc", code: 2, want: []string{"database", `"abc"`, "a number"}},
	{name: "no database of MySQL", args: "serve --check --store mysql://h/", code: 2, want: []string{"store URL path", "name of a database"}},
	{name: "a parameter of MySQL", args: "serve --check --store mysql://h/x?foo=bar", code: 2, want: []string{"parameter", `"foo"`, "tls_ca"}},
	{name: "a mode of TLS", args: "serve --check --store mysql://h/x?tls=maybe", code: 2, want: []string{"tls", `"maybe"`, "skip-verify"}},
	{name: "a prefix of MySQL", args: "serve --check --store mysql://h/x?prefix=a-b", code: 2, want: []string{"prefix", `"a-b"`, "1 to 32"}},
	{name: "a mode of PostgreSQL", args: "serve --check --store postgres://h/x?sslmode=foo", code: 2, want: []string{"sslmode", `"foo"`, "verify-full"}},
	{name: "a prefix of MongoDB", args: "serve --check --store mongodb://h/x?prefix=a.b", code: 2, want: []string{"prefix", `"a.b"`, "letters, digits"}},
	{name: "a parameter of etcd", args: "serve --check --store etcd://h/x?foo=bar", code: 2, want: []string{"etcd URL", `"foo"`, "the form is"}},
	{name: "a path of ZooKeeper", args: "serve --check --store zk://h/x//y", code: 2, want: []string{"path", `"x//y"`, "letters, digits"}},
	{name: "an access list of ZooKeeper", args: "serve --check --store zk://h/x?acl=foo", code: 2, want: []string{"acl", "open, or creator"}},
	{name: "no URL", args: "serve --check --store ftp://x", code: 2, want: []string{"--store", "bolt:PATH"}},
	{name: "a server without a scheme", args: "next a --server localhost:8080", code: 2, want: []string{"server", "http://127.0.0.1:8080"}},

	// Flags and arguments.
	{name: "no numbers", args: "next a -n 0 --store memory:", code: 2, want: []string{"-n", "0", "1 to 1000000"}},
	{name: "no tag", args: "next", code: 2, want: []string{"missing argument", "hapax next TAG"}},
	{name: "a negative worker", args: "workers show default -1 --store memory:", code: 2, want: []string{"argument", `"-1"`, "hapax workers show POOL"}},
	{name: "a time in words", args: "make --layout leaf --time soon", code: 2, want: []string{"time", `"soon"`, "RFC 3339"}},
	{name: "a field of no layout", args: "make --layout leaf --time 5 FOO=1", code: 2, want: []string{"field", `"FOO"`, "time, worker, sequence"}},
	{name: "a layout that there is not", args: "parse 5 --layout leef", code: 2, want: []string{"layout", `"leef"`, "one of leaf"}},
	{name: "a negative step", args: "tags create a --step -5 --store memory:", code: 2, want: []string{"step", "-5", "1 to"}},
	{name: "a kind", args: "tags create a --kind segmnt --store memory:", code: 2, want: []string{"kind", `"segmnt"`, `"snowflake"`}},
	{name: "a remainder", args: "tags create a --delta 3 --remainder 5 --store memory:", code: 2, want: []string{"remainder", "5", "0 to delta - 1"}},
	{name: "a code", args: "tags create a --code {seq --store memory:", code: 2, want: []string{"code", `"{seq"`, "closing brace"}},
	{name: "a data directory to adopt", args: "adopt --data nodir --yes", code: 2, want: []string{"data", `"nodir"`, "no such file"}},
	{name: "... to trace in", args: "trace 5 --data nodir", code: 2, want: []string{"--data", `"nodir"`, "data directory of a node"}},
	{name: "a script", args: "testserver --script nofile", code: 2, want: []string{"--script", `"nofile"`, "no such file"}},
	{name: "a token's file", args: "next a --server http://127.0.0.1:1 --token-file nofile", code: 2, want: []string{"--token-file", `"nofile"`, "no such file"}},
	{name: "YAML to import", args: "import leaf c.yaml", code: 2, want: []string{"FILE", `"c.yaml"`, "KEY=VALUE"}},
	{name: "memory for an audit", args: "audit --memory 5 c.yaml", code: 2, want: []string{"memory", "5", "1048576 to"}},
	{name: "a directory to audit", args: "audit .", code: 2, want: []string{"file", `"."`, "directory"}},
	{name: "a rate", args: "plan --rate -1", code: 2, want: []string{"rate", "-1", "1e-06 to 1e+12"}},
	{name: "two of which one counts", args: "trace 5 --tag a --layout leaf", code: 2, want: []string{"--tag and --layout exclude each other"}},

	// Settings.
	{name: "an address without a port", args: "serve --check --http localhost", code: 2, want: []string{"http", `"localhost"`, "HOST:PORT"}},
	{name: "a variable without a unit", args: "HAPAX_MAX_WAIT=5 serve --check", code: 2, want: []string{"HAPAX_MAX_WAIT", `"5"`, "1ms to 1h"}},
	{name: "a heartbeat", args: "serve --check --heartbeat 1h", code: 2, want: []string{"--heartbeat", `"1h"`, "100ms to 1m"}},
	{name: "a key", config: "htpt: x", args: "serve --check --config c.yaml", code: 2, want: []string{"c.yaml", "htpt", "did you mean http"}},
	{name: "a list for a mapping", config: "tags: [a]", args: "serve --check --config c.yaml", code: 2, want: []string{"tags", "[a]", "a mapping"}},
	{name: "a range of workers", config: "pools: {default: {workers: 5-2}}", args: "serve --check --config c.yaml", code: 2, want: []string{"pools.default.workers", `"5-2"`, "0-63"}},
	{name: "a level", config: "log_level: loud", args: "serve --check --config c.yaml", code: 2, want: []string{"log_level", `"loud"`, "debug, info, warn, error"}},
	{name: "a foreign setting", config: "compat: {leaf: {prt: 1}}", args: "serve --check --config c.yaml", code: 2, want: []string{"compat.leaf.prt", "did you mean compat.leaf.port"}},
	{name: "a scope", config: "tokens: {a: {hash: x}}", args: "serve --check --config c.yaml", code: 2, want: []string{"tokens.a.hash", "sha256:", "hapax token new"}},

	// Of those who are in a hurry: files, certificates, units, ports, other commands' flags.
	{name: "certificate and key exchanged", args: "serve --check --tls-cert k.pem --tls-key c.pem", code: 2, want: []string{"tls_cert", `"k.pem"`, "tls_key", "exchange the two"}},
	{name: "another key", args: "serve --check --tls-cert c.pem --tls-key other.pem", code: 2, want: []string{"tls_cert c.pem", "tls_key other.pem", "do not go together", "give the key with which"}},
	{name: "a certificate that is none", args: "serve --check --tls-cert c.yaml --tls-key k.pem", code: 2, want: []string{"tls_cert", `"c.yaml"`, "a certificate in PEM form"}},
	{name: "a key that is none", args: "serve --check --tls-cert c.pem --tls-key c.yaml", code: 2, want: []string{"tls_key", `"c.yaml"`, "key in PEM form"}},
	{name: "a directory of certificates", args: "serve --check --tls-cert . --tls-key k.pem", code: 2, want: []string{"tls_cert", `"."`, "a file in PEM form", "is a directory"}},
	{name: "a certificate that is not there", args: "serve --check --tls-cert none.pem --tls-key k.pem", code: 2, want: []string{"tls_cert", `"none.pem"`, "no such file"}},
	{name: "authorities that are none", args: "serve --check --tls-cert c.pem --tls-key k.pem --tls-client-ca k.pem", code: 2, want: []string{"tls_client_ca", `"k.pem"`, "certificates in PEM form"}},
	{name: "a certificate that has ended", args: "serve --check --store memory: --http 127.0.0.1:0 --resp= --tls-cert old.pem --tls-key k.pem", want: []string{"tls_cert old.pem", "ended at 2020-01-02T00:00:00Z", "put a new one in place"}},
	{name: "a directory for a configuration", args: "serve --check --config .", code: 2, want: []string{"--config", `"."`, "YAML", "is a directory"}},
	{name: "a configuration that is not there", args: "serve --check --config none.yaml", code: 2, want: []string{"--config", `"none.yaml"`, "YAML", "no such file"}},
	{name: "tabs in the configuration", config: "tokens:\n\ta: {}", args: "serve --check --config c.yaml", code: 2, want: []string{"c.yaml", "line 2", "spaces"}},
	{name: "a file for the data directory", args: "serve --check --http 127.0.0.1:0 --resp= --data c.pem", code: 1, want: []string{"data directory", "c.pem", "not a directory"}},
	{name: "a directory for a token", args: "next a --server http://127.0.0.1:1 --token-file .", code: 2, want: []string{"--token-file", `"."`, "is a directory"}},
	{name: "an empty token", args: "next a --server http://127.0.0.1:1 --token-file empty", code: 2, want: []string{"--token-file", `"empty"`, "hapax token new", "empty"}},
	{name: "a directory to import", args: "import leaf .", code: 2, want: []string{"FILE", `"."`, "is a directory"}},
	{name: "authorities of a command", args: "next a --server https://127.0.0.1:1 --ca-file k.pem", code: 2, want: []string{"--ca-file", `"k.pem"`, "certificates in PEM form"}},
	{name: "a certificate of a command", args: "next a --server https://127.0.0.1:1 --cert-file c.pem", code: 2, want: []string{"--cert-file", `"c.pem"`, "a certificate and its key"}},
	{name: "a port of a server", args: "next a --server http://127.0.0.1:99999", code: 2, want: []string{"server", "127.0.0.1:99999", "1 to 65535"}},
	{name: "a port to listen on", args: "serve --check --http 127.0.0.1:99999", code: 2, want: []string{"http", `"127.0.0.1:99999"`, "HOST:PORT"}},
	{name: "a URL to listen on", args: "serve --check --http http://127.0.0.1:8080", code: 2, want: []string{"http", `"http://127.0.0.1:8080"`, "HOST:PORT"}},
	{name: "a port of a store", args: "serve --check --store postgres://h:abc/d", code: 2, want: []string{"store", "HOST:PORT"}},
	{name: "an @ in a password", args: "serve --check --store postgres://u:p@ss@h/d", code: 2, want: []string{"store", "more than one @", "%40", "store_password_file"}},
	{name: "a file without its scheme", args: "serve --check --store /var/lib/hapax.db", code: 2, want: []string{"--store", "bolt:PATH"}},
	{name: "a mistyped parameter of PostgreSQL", args: "serve --check --store postgres://h/x?sslmod=disable", code: 2, want: []string{"store URL parameter", `"sslmod"`, "sslmode, if that is meant"}},
	{name: "a mistyped parameter of MongoDB", args: "serve --check --store mongodb://h/x?replicast=rs", code: 2, want: []string{"store URL parameter", `"replicast"`, "replicaSet, if that is meant"}},
	{name: "a mistyped parameter of Redis", args: "serve --check --store redis://:s3cret@h/0?read_timout=5s", code: 2, want: []string{"store URL parameter", `"read_timout"`, "read_timeout, if that is meant"}},
	{name: "a value of MongoDB", args: "serve --check --store mongodb://u:s3cret@h/x?connectTimeoutMS=soon", code: 2, want: []string{"store", "connectTimeoutMS", "soon"}},
	{name: "a unit that there is not", args: "serve --check --max-wait 5sec", code: 2, want: []string{"--max-wait", `"5sec"`, "1ms to 1h"}},
	{name: "a time that is too long", args: "serve --check --max-wait 2h", code: 2, want: []string{"--max-wait", `"2h"`, "1ms to 1h"}},
	{name: "numbers over the limit", args: "next a -n 1000001 --store memory:", code: 2, want: []string{"-n", "1000001", "1 to 1000000"}},
	{name: "fewer than none", args: "next a -n -5 --store memory:", code: 2, want: []string{"-n", "-5", "1 to 1000000"}},
	{name: "a flag of nothing", args: "next a --srver http://127.0.0.1:1", code: 2, want: []string{"--srver", "did you mean --server", "hapax next --help"}},
	{name: "a flag of another command", args: "next a --step 5 --store memory:", code: 2, want: []string{"--step", "hapax next --help"}},
	{name: "a time zone", args: "import uid-generator c.yaml --zone Mars/Phobos", code: 2, want: []string{"--zone", `"Mars/Phobos"`, "Asia/Shanghai"}},
	{name: "a time without its zone", args: "make --layout leaf --time 2026-01-02T03:04:05", code: 2, want: []string{"time", `"2026-01-02T03:04:05"`, "RFC 3339"}},
	{name: "a rate in thousands", args: "plan --rate 1k", code: 2, want: []string{"--rate", `"1k"`, "a number, such as 1000"}},
	{name: "a strategy", args: "tags create a --strategy segmnt --store memory:", code: 1, want: []string{"strategy", `"segmnt"`, "there are", "segment"}},

	{name: "a directory that is not made", args: "serve --check --store bolt:no/such/s.db --http 127.0.0.1:0 --resp=", code: 1, want: []string{"no/such", "make the directory"}},
}

// mistakenFiles are what the mistakes name: a certificate with its key, one that has ended,
// and a key of neither.
func mistakenFiles(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{"empty": nil}
	key := func(name string) *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKCS8PrivateKey(k)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
		return k
	}
	k := key("k.pem")
	key("other.pem")
	begins := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, ends := range map[string]time.Time{"c.pem": begins.AddDate(80, 0, 0), "old.pem": begins.AddDate(0, 0, 1)} {
		c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: begins, NotAfter: ends, DNSNames: []string{"localhost"}}
		der, err := x509.CreateCertificate(rand.Reader, c, c, k.Public(), k)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	return files
}

// What people get wrong is answered with the field, its value, what is allowed and what to
// do. Bodies of requests are in the table of internal/api/httpapi.
func TestMistakes(t *testing.T) {
	for _, name := range []string{"HAPAX_SERVER", "HAPAX_DATA", "HAPAX_CONFIG", "HAPAX_STORE", "HAPAX_HTTP"} {
		t.Setenv(name, "")
		if err := os.Unsetenv(name); err != nil { // Setenv brings it back
			t.Fatal(err)
		}
	}
	files := mistakenFiles(t)
	for _, test := range mistakes {
		t.Run(test.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			files["c.yaml"] = []byte(test.config + "\n")
			for name, text := range files {
				if err := os.WriteFile(name, text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			words := strings.Fields(test.args)
			for strings.HasPrefix(words[0], "HAPAX_") {
				name, value, _ := strings.Cut(words[0], "=")
				t.Setenv(name, value)
				words = words[1:]
			}
			var out, errs bytes.Buffer
			code := Main(t.Context(), words, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
			told := out.String() + errs.String()
			if strings.Contains(told, "s3cret") || strings.Contains(told, "BEGIN") {
				t.Errorf("it tells a secret: %s", told)
			}
			if code != test.code {
				t.Errorf("exit code %d, want %d: %s", code, test.code, told)
			}
			for _, want := range test.want {
				if !strings.Contains(told, want) {
					t.Errorf("it lacks %q: %s", want, told)
				}
			}
			if _, err := os.Stat("hapax-data"); err == nil {
				t.Error("a data directory was made")
			}
		})
	}
}

// What is in the store is named with its range, or with the commands that show and change
// it.
func TestMistakesInAStore(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"tags create orders", 0, ""},
		{"tags create orders", 1, "hapax tags show orders tells what it is, and hapax tags set orders changes it"},
		{"pools create default --layout leaf", 0, ""},
		{"workers retire default 5000", 2, "invalid worker 5000: want 0 to 1023"},
		{"workers show default 5000", 2, "invalid worker 5000: want 0 to 1023"},
		{"tags delete orders", 0, ""},
		{"tags set orders --step 5", 1, "hapax tags create orders has it go on above its mark"},
	} {
		var errs bytes.Buffer
		code := Main(t.Context(), append(strings.Fields(test.args), "--store", "bolt:s.db"), Streams{In: strings.NewReader(""), Out: new(bytes.Buffer), Err: &errs})
		if code != test.code || !strings.Contains(errs.String(), test.want) {
			t.Errorf("%s: the exit code is %d: %s; want %q", test.args, code, errs.String(), test.want)
		}
	}
}
