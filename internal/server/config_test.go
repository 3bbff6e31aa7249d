package server

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/store/driver"
)

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hapax.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func env(values map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := values[name]; return v, ok }
}

// hashA is the digest of some token.
var hashA = auth.HashToken("a")

// Every setting, from every source, reaches its field, and the stronger source
// wins.
func TestPrecedence(t *testing.T) {
	passwordFile := func(text string) string { return writeFile(t, text) }
	key := func(of string) string { return writeFile(t, strings.Repeat(of, 16)) }
	values := map[string][3]string{ // file, environment, flag
		"data":                  {"a", "b", "c"},
		"store":                 {"memory:", "bolt:x", "etcd://h:1"},
		"store_password_file":   {passwordFile("a"), passwordFile("b"), passwordFile("c")},
		"http":                  {"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"},
		"resp":                  {"127.0.0.1:1", "", "127.0.0.1:3"},
		"resp_connections":      {"1", "2", "3"},
		"hosts":                 {"a", "a,b", "*"},
		"http_connections":      {"1", "2", "3"},
		"resp_idle":             {"1s", "0s", "3s"},
		"resp_large_numbers":    {"text", "integer", "text"},
		"admin_http":            {"127.0.0.1:1", "", "127.0.0.1:3"},
		"tls_cert":              {"a", "b", "c"},
		"tls_key":               {"a", "b", "c"},
		"tls_client_ca":         {"a", "b", "c"},
		"allow_unauthenticated": {"true", "false", "true"},
		"tokens":                {"{a: {hash: " + hashA + ", rate: 1}}", "{a: {hash: " + hashA + ", rate: 2}}", "{a: {hash: " + hashA + ", rate: 3}}"},
		"auto_create":           {"false", "true", "false"},
		"max_tags":              {"1", "2", "3"},
		"max_count":             {"1", "2", "3"},
		"alarm_budget":          {"1s", "2s", "3s"},
		"alarm_forecast":        {"1h", "2h", "3h"},
		"alarm_certificate":     {"1h", "2h", "3h"},
		"alarm_command":         {"a", "b", "c"},
		"alarm_url":             {"http://a", "http://b", "http://c"},
		"max_wait":              {"1s", "2s", "3s"},
		"refresh":               {"1s", "2s", "3s"},
		"tag_idle":              {"1s", "2s", "3s"},
		"store_timeout":         {"1s", "2s", "3s"},
		"heartbeat":             {"2s", "3s", "4s"},
		"heal":                  {"manual", "auto", "manual"},
		"advertise":             {"a:1", "b:2", "c:3"},
		"console":               {"false", "true", "false"},
		"fleet_key":             {"a", "b", "c"},
		"witness":               {"a", "b", "c"},
		"ledger":                {"off", "required", "on"},
		"ledger_age":            {"1h", "2h", "3h"},
		"ledger_size":           {"1", "2", "3"},
		"retire_lines":          {"1h", "2h", "3h"},
		"code_keys":             {"{k: 'file:" + key("a") + "'}", "{k: 'file:" + key("b") + "'}", "{k: 'file:" + key("c") + "'}"},
		"drain":                 {"1s", "2s", "3s"},
		"lame_duck":             {"1s", "2s", "3s"},
		"log_format":            {"text", "json", "auto"},
		"log_level":             {"debug", "warn", "error"},
		"tags":                  {"{a: {step: 1}}", "{a: {step: 2}}", "{a: {step: 3}}"},
		"pools":                 {"{p: {workers: 1}}", "{p: {workers: 2}}", "{p: {workers: 3}}"},
		"plugins":               {"{p: {order: 1}}", "{p: {order: 2}}", "{p: {order: 3}}"},
		"compat":                {"{vesta: {version: 1}}", "{vesta: {version: 2}}", "{vesta: {version: 3}}"},
	}
	for _, s := range Settings() {
		t.Run(s.Name, func(t *testing.T) {
			v, ok := values[s.Name]
			if !ok {
				t.Fatal("the setting is not in this test")
			}
			from := Sources{}
			with := func(text string) map[string]string {
				flags := map[string]string{s.Name: text}
				if s.Name == "store_password_file" {
					flags["store"] = "mysql://u@h/d"
				}
				return flags
			}
			want := func(text string) {
				t.Helper()
				c, err := Load(from)
				if err != nil {
					t.Fatal(err)
				}
				got := s.get(&c)
				reference, err := Load(Sources{Flags: with(text)})
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, s.get(&reference)) {
					t.Errorf("got %v, want %v", got, text)
				}
			}
			want(s.Default)
			if s.Name == "store_password_file" {
				from.Flags = map[string]string{"store": "mysql://u@h/d"}
			}
			from.File = writeFile(t, s.Name+": "+strings.ReplaceAll(v[0], "memory:", "'memory:'"))
			want(v[0])
			from.Env = env(map[string]string{s.Env(): v[1]})
			want(v[1])
			from.Flags = with(v[2])
			want(v[2])
		})
	}
}

func TestSectionsMerge(t *testing.T) {
	c, err := Load(Sources{
		File: writeFile(t, `
tags:
  orders: {step: 5000, max_step: 50000}
  "a.b/ü": {kind: snowflake, pool: p}
  plain:
pools:
  p:
    layout: vesta-max-peak
    workers: 3
    lease: 1m
    fields: {type: 1}
`),
		Env: env(map[string]string{"HAPAX_TAGS": "{orders: {step: 7000}, users: {start: 10}}"}),
	})
	if err != nil {
		t.Fatal(err)
	}
	wantTags := map[string]service.TagConfig{
		"orders": {Step: 7000, MaxStep: 50000},
		"a.b/ü":  {Kind: hapax.KindSnowflake, Pool: "p"},
		"plain":  {},
		"users":  {Start: 10},
	}
	if !reflect.DeepEqual(c.Tags, wantTags) {
		t.Errorf("tags are %v, want %v", c.Tags, wantTags)
	}
	wantPools := map[string]service.PoolConfig{
		"p": {Layout: "vesta-max-peak", Workers: "3", Lease: time.Minute, Fields: map[string]int64{"type": 1}},
	}
	if !reflect.DeepEqual(c.Pools, wantPools) {
		t.Errorf("pools are %v, want %v", c.Pools, wantPools)
	}
}

func TestBadConfig(t *testing.T) {
	const secret = "hapax_QWERTYUIOPASDFGHJKLZXCVBNM"
	tests := []struct {
		name string
		file string
		env  map[string]string
		flag map[string]string
		want string // in the error
	}{
		{name: "unknown key", file: "max_wiat: 2s", want: "there is no setting max_wiat; did you mean max_wait?"},
		{name: "unknown key of a tag", file: "tags: {orders: {stpe: 1}}", want: "there is no setting tags.orders.stpe; did you mean tags.orders.step?"},
		{name: "unknown key of a pool", file: "pools: {p: {layuot: leaf}}", want: "there is no setting pools.p.layuot; did you mean pools.p.layout?"},
		{name: "unknown key in the environment", env: map[string]string{"HAPAX_TAGS": "{a: {b: 1}}"}, want: "HAPAX_TAGS"},
		{name: "key twice", file: "drain: 1s\ndrain: 2s", want: `line 2: "drain" is given a second time, after line 1`},
		{name: "not YAML", file: "a: [", want: "hapax.yaml"},
		{name: "a list", file: "- 1", want: "hapax.yaml"},
		{name: "list for a value", file: "http: [a, b]", want: "invalid http [a b]: want one value"},
		{name: "scalar for a section", file: "tags: 3", want: "invalid tags 3: want a mapping from names to definitions"},
		{name: "scalar for a tag", file: "tags: {a: 3}", want: "invalid tags.a 3: want a mapping"},
		{name: "text for a number", file: "max_tags: many", want: `invalid max_tags "many": want an integer from 1 to 1000000`},
		{name: "number without unit", file: "max_wait: 10", want: `invalid max_wait "10": want a duration with its unit, such as 10s, from 1ms to 1h`},
		{name: "below the range", env: map[string]string{"HAPAX_MAX_COUNT": "0"}, want: `invalid HAPAX_MAX_COUNT "0": want an integer from 1 to 1000000`},
		{name: "above the range", flag: map[string]string{"drain": "2h"}, want: `invalid --drain "2h": want a duration with its unit, such as 10s, from 0s to 1h`},
		{name: "long address", flag: map[string]string{"advertise": strings.Repeat("x", 257)}, want: "invalid --advertise (257 bytes): want at most 256 bytes"},
		{name: "huge number", flag: map[string]string{"max_tags": "99999999999999999999"}, want: "invalid --max-tags"},
		{name: "not a choice", flag: map[string]string{"log_level": "loud"}, want: `invalid --log-level "loud": want one of debug, info, warn, error`},
		{name: "yes is not true", file: "auto_create: \"yes\"", want: `invalid auto_create "yes": want true or false`},
		{name: "text for a tag's number", file: "tags: {a: {step: lots}}", want: `invalid tags.a.step "lots": want an integer`},
		{name: "number for a duration", file: "pools: {p: {lease: [1]}}", want: "invalid pools.p.lease [1]: want a duration with its unit, such as 10s"},
		{name: "duration without a unit", file: "pools: {p: {lease: 30}}", want: "invalid pools.p.lease 30: want a duration with its unit, such as 10s"},
		{name: "fraction for a duration", file: "pools: {p: {lease: 1.5}}", want: "invalid pools.p.lease 1.5: want a duration"},
		{name: "no value", flag: map[string]string{"log_level": ""}, want: "missing --log-level: want one of debug"},
		{name: "bad duration", file: "pools: {p: {lease: soon}}", want: "pools.p.lease"},

		{name: "token for a digest", file: "tokens: {a: {hash: " + secret + "}}", want: "invalid tokens.a.hash"},
		{name: "token for a section", file: "tokens: " + secret, want: "invalid tokens"},
		{name: "token for a definition", file: "tokens: {a: " + secret + "}", want: "invalid tokens.a"},
		{name: "token in the environment", env: map[string]string{"HAPAX_TOKENS": secret}, want: "HAPAX_TOKENS: it is not a mapping"},
		{name: "list of tokens", file: "tokens: {a: {hash: [" + secret + "]}}", want: "invalid tokens.a.hash"},
		{name: "scalar for a list", file: "tokens: {a: {hash: " + hashA + ", scopes: {}}}", want: "tokens.a.scopes"},
		{name: "text for a limit", file: "tokens: {a: {hash: " + hashA + ", rate: " + secret + "}}", want: "invalid tokens.a.rate"},
		{name: "a fraction for an integer", file: "tags: {o: {step: 1.5}}", want: "invalid tags.o.step (1.5, written with a point, an exponent or more than 64 bits): want an integer"},
		{name: "text in a foreign system", file: "compat: {leaf: {port: x}}", want: `invalid compat.leaf.port "x": want an integer`},
		{name: "a list for a file", file: "[1]", want: "want a mapping in YAML"},
		{name: "scope", file: "tokens: {a: {hash: " + hashA + ", scopes: [root]}}", want: `invalid tokens.a.scopes "root": want one of issue, lease, admin, metrics`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			from := Sources{Env: env(test.env), Flags: test.flag}
			if test.file != "" {
				from.File = writeFile(t, test.file)
			}
			_, err := Load(from)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("the error is %v, want it to tell %s", err, test.want)
			}
			if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.HasPrefix(err.Error(), "hapax: ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("not one line of ErrInvalidArgument: %v", err)
			}
			if strings.Contains(err.Error(), secret[:8]) {
				t.Errorf("the error tells a token: %v", err)
			}
		})
	}
}

func TestMissingFile(t *testing.T) {
	_, err := Load(Sources{File: filepath.Join(t.TempDir(), "none.yaml")})
	if !errors.Is(err, hapax.ErrInvalidArgument) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the error is %v", err)
	}
}

// What is printed is read back as the same configuration.
func TestPrintRoundTrip(t *testing.T) {
	c, err := Load(Sources{
		File: writeFile(t, "tokens: {app: {hash: '"+hashA+"', scopes: [issue, admin], tags: [a*], rate: 5}}\ntags: {\"o: {\": {step: 7}, s: {kind: snowflake}, p: }\npools: {default: {lease: 90s, fields: {x: 1}}}\nplugins: {q: {kind: quota, limit: 5, per: 90s, tags: a}, r: {kind: rate, windows: [1m, 24h], off: true}}\ncode_keys: {k: 'file:"+writeFile(t, strings.Repeat("k", 16))+"'}"),
		Flags: map[string]string{
			"data": "a: 'b'", "store": "etcd://h:1?x=y", "max_wait": "1m30s", "auto_create": "false", "log_level": "warn",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.AppendYAML(nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Load(Sources{File: writeFile(t, string(text))})
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if !reflect.DeepEqual(c, again) {
		t.Errorf("read back as %+v, want %+v", again, c)
	}
}

func TestRedact(t *testing.T) {
	for given, want := range map[string]string{
		"bolt:":                          "bolt:",
		"mysql://u:secret@h:3306/db":     "mysql://u:xxxxx@h:3306/db",
		"mysql://u:se%2Fcret@h/db":       "mysql://u:xxxxx@h/db",
		"redis://:secret@h/0":            "redis://:xxxxx@h/0",
		"mongodb://u:secret@h1:1,h2:2/d": "mongodb://u:xxxxx@h1:1,h2:2/d",
		"redis+sentinel://u:s@h1:1,h2:2/m?sentinel_password=s": "redis+sentinel://u:xxxxx@h1:1,h2:2/m?sentinel_password=xxxxx",
		"postgres://h/db?user=a&password=secret&sslmode=off":   "postgres://h/db?user=a&password=xxxxx&sslmode=off",
		"postgres://h/db?pass%77ord=secret&sslPassword=s":      "postgres://h/db?pass%77ord=xxxxx&sslPassword=xxxxx",
		"etcd://root@h:1":          "etcd://root@h:1",
		"unix:///run/redis@1.sock": "unix:///run/redis@1.sock",
		"bolt:data@home/hapax.db":  "bolt:data@home/hapax.db",
	} {
		if err := checkStore(given); err != nil {
			t.Errorf("%s: %v", given, err)
		}
		if got := redact(given); got != want {
			t.Errorf("redact(%q) is %q, want %q", given, got, want)
		}
	}
}

// A URL that can be read in two ways is refused, whatever store it names, and no
// part of it is shown.
func TestAmbiguousStore(t *testing.T) {
	for _, scheme := range storeSchemes {
		for _, rest := range []string{
			"u:S3?cr@h/db", "u:S3/cr@h/db", "u:S3#cr@h/db", "u:S3@cr@h/db", "u:S3%zz@h/db", "u:S3?cr", "u:S3", "u:S3 cr@h/db",
			"h/db?password=S3@cr", "u:S3cr@h:99:1/db", "u:S3cr@h\x00/db",
		} {
			_, err := Load(Sources{Env: env(map[string]string{"HAPAX_STORE": scheme + "://" + rest})})
			if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.HasPrefix(err.Error(), "hapax: invalid HAPAX_STORE (a "+scheme+" URL") {
				t.Errorf("%s: the error is %v", rest, err)
			} else if strings.Contains(err.Error(), "S3") || strings.Contains(err.Error(), "cr@") {
				t.Errorf("%s is shown: %v", rest, err)
			}
			if got := redact(scheme + "://" + rest); got != redacted {
				t.Errorf("%s is shown as %s", rest, got)
			}
		}
	}
	for _, store := range []string{"", "mysql", "mysql:u:S3@h/db", "u:S3@h/db", "mysq1://u:S3@h/db", "//u:S3@h"} {
		_, err := Load(Sources{Flags: map[string]string{"store": store}})
		if !errors.Is(err, hapax.ErrInvalidArgument) || strings.Contains(err.Error(), "S3") || !strings.Contains(err.Error(), "invalid --store (not a URL of a store)") {
			t.Errorf("%q: the error is %v", store, err)
		}
	}
}

func FuzzStoreURL(f *testing.F) {
	for _, form := range StoreForms() {
		f.Add(form.URL)
	}
	f.Add("mysql://u:S3?cr@host/db")
	f.Fuzz(func(t *testing.T, text string) {
		u, err := parseStoreURL(text)
		if err != nil {
			return
		}
		if u.String() != text {
			t.Fatalf("%q comes back as %q", text, u)
		}
		const secret = "p@s/s?w#o%r:d +"
		with, err := withPassword(text, secret)
		if u.password {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		again, err := url.Parse(with)
		if err != nil {
			return // several hosts, which net/url does not read
		}
		if got, _ := again.User.Password(); got != secret {
			t.Fatalf("%q has the password %q", with, got)
		}
	})
}

// A password may stand in a file or in a variable, once, and is not printed.
func TestStorePassword(t *testing.T) {
	const secret = "p@ss/w#1"
	file := writeFile(t, secret+"\n")
	for name, test := range map[string]struct {
		env, flags map[string]string
		want       string // of the URL, or in the error
	}{
		"variable":     {map[string]string{"HAPAX_STORE_PASSWORD": secret}, map[string]string{"store": "mysql://u@h/d"}, "mysql://u:p%40ss%2Fw%231@h/d"},
		"file":         {nil, map[string]string{"store": "redis://h/0", "store_password_file": file}, "redis://:p%40ss%2Fw%231@h/0"},
		"both":         {map[string]string{"HAPAX_STORE_PASSWORD": "x"}, map[string]string{"store": "redis://h/0", "store_password_file": file}, "given twice"},
		"in the URL":   {nil, map[string]string{"store": "redis://:x@h/0", "store_password_file": file}, "given twice"},
		"not needed":   {nil, map[string]string{"store_password_file": file}, "takes no password"},
		"missing file": {nil, map[string]string{"store": "redis://h/0", "store_password_file": file + "x"}, "no such file"},
		"empty file":   {nil, map[string]string{"store": "redis://h/0", "store_password_file": writeFile(t, "\n")}, "is empty"},
	} {
		c, err := Load(Sources{Env: env(test.env), Flags: test.flags})
		if err != nil {
			if !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "p@ss") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		text, err := c.AppendYAML(nil)
		if err != nil || strings.Contains(string(text), "ss%2F") || strings.Contains(string(text), secret) {
			t.Errorf("%s: %v, %s", name, err, text)
		}
		if got := newOpener(c, nil).url; got != test.want {
			t.Errorf("%s: the URL is %s, want %s", name, got, test.want)
		}
	}
}

// The keys of tags and pools that are described are those that exist.
func TestKeysAreComplete(t *testing.T) {
	for name, pair := range map[string]struct {
		described []Key
		actual    reflect.Type
	}{
		"tokens": {tokenKeys, reflect.TypeFor[auth.TokenConfig]()},
		"tags":   {tagKeys, reflect.TypeFor[service.TagConfig]()},
		"pools":  {poolKeys, reflect.TypeFor[service.PoolConfig]()},
	} {
		checkKeysOf(t, name, pair.described, pair.actual)
	}
	for _, s := range systems {
		checkKeysOf(t, s.Name, s.Keys, reflect.TypeOf(s.New()).Elem())
	}
}

func checkKeysOf(t *testing.T, name string, of []Key, settings reflect.Type) {
	t.Helper()
	var described, actual []string
	for _, k := range of {
		described = append(described, k.Name)
	}
	for f := range settings.Fields() {
		if f.IsExported() {
			actual = append(actual, f.Tag.Get("yaml"))
		}
	}
	slices.Sort(described)
	slices.Sort(actual)
	if !slices.Equal(described, actual) {
		t.Errorf("%s: described are %v, there are %v", name, described, actual)
	}
}

func TestNearest(t *testing.T) {
	for given, want := range map[string]string{"dta": "data", "htpp": "http", "loglevel": "log_level", "": "data", "max-wait": "max_wait"} {
		var names []string
		for _, s := range settings {
			names = append(names, s.Name)
		}
		if got := driver.Nearest(given, names); got != want && driver.Distance(given, got) >= driver.Distance(given, want) {
			t.Errorf("nearest to %q is %q, want %q", given, got, want)
		}
	}
}
