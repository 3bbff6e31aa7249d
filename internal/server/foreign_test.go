package server

import (
	"bufio"
	"database/sql"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/mount/leaf"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/sqlstore/mysqlstore"
)

// Natively the routes answer from the tags that are there, and create none: a key that
// was not carried over would begin at 1 again.
func TestLeafNative(t *testing.T) {
	s, _ := serveCompat(t, `  leaf: {}
tags: {declared: {start: 500}, flake: {kind: snowflake}}
`)
	if _, err := s.service.CreateTag(t.Context(), mustDefine(t, hapax.Tag{Name: "a.b", Start: 70}), hapax.CreateExplicit); err != nil {
		t.Fatal(err)
	}
	at := s.listeners.http
	for _, c := range []struct {
		path   string
		status int
		want   string
	}{
		{"/api/segment/get/a.b", 200, "70"},
		{"/api/segment/get/a.b/", 200, "71"},
		{"/api/segment/get/declared", 200, "500"},
		{"/api/segment/get/flake", 500, "Result{id=-2"},
		{"/api/segment/get/snowflake", 500, "Result{id=-2"},
		{"/api/segment/get/never", 500, "Result{id=-2"},
		{"/api/segment/get/", 404, "No message available"},
		{"/cache", 200, "<td>a.b</td>\n            <td>true</td>"},
		{"/db", 200, "<td>a.b</td>"},
		{"/readyz", 200, `"ready":true`},
	} {
		if status, body := get(t, at, c.path); status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s; want %d %s", c.path, status, body, c.status, c.want)
		}
	}
	if _, err := s.service.Tag(t.Context(), "never"); err == nil {
		t.Error("a key that is not there was created by use")
	}
	_, id := get(t, at, "/api/snowflake/get/x")
	if _, text := get(t, at, "/decodeSnowflakeId?snowflakeId="+id); !strings.Contains(text, `{"workerId":"`) {
		t.Errorf("%s is %s", id, text)
	}
	if native, err := s.service.Next(t.Context(), leaf.Pool); err != nil || native.String() <= id {
		t.Errorf("the tag %s gives %v, %v; want one above %s", leaf.Pool, native, err, id)
	}
}

func mustDefine(t *testing.T, tag hapax.Tag) hapax.Tag {
	t.Helper()
	tag, err := tag.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

// Native segments of TinyID's route are those of the tag, with its delta and remainder.
func TestTinyIDNative(t *testing.T) {
	const hash = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" // of test
	s, _ := serveCompat(t, `  tinyid: {tokens: {odd: "sha256:%s", never: ["sha256:%s"], fresh: "sha256:%s"}}
tags: {odd: {delta: 2, remainder: 1, step: 10}, fresh: {}}
`, hash, hash, hash)
	for path, want := range map[string]string{
		"nextIdSimple?bizType=odd&token=test&batchSize=3": "1,3,5",
		"nextId?bizType=odd&token=other":                  `{"data":null,"code":5,"message":"token is error"}`,
		"nextId?bizType=odd&token=":                       `{"data":null,"code":5,"message":"token is error"}`,
		"nextId?bizType=never&token=test":                 `{"data":null,"code":6,"message":"error query segmentId: can not find biztype:never"}`,
		"nextSegmentIdSimple?bizType=never&token=test":    "",
	} {
		if status, body := get(t, s.listeners.http, "/tinyid/id/"+path); status != http.StatusOK || body != want {
			t.Errorf("%s: %d %s; want %s", path, status, body, want)
		}
	}
	for bizType, end := range map[string]string{"odd": ",2,1", "fresh": ",1,0"} { // the latter for the first time
		if _, body := get(t, s.listeners.http, "/tinyid/id/nextSegmentIdSimple?bizType="+bizType+"&token=test"); !strings.HasSuffix(body, end) {
			t.Errorf("a segment of %s: %q", bizType, body)
		}
	}
}

// The addresses of foreign systems have as many places for connections as the others.
func TestForeignGates(t *testing.T) {
	s, _ := serveCompat(t, `  leaf: {http: 127.0.0.1:0}
  tinyid: {http: 127.0.0.1:0, tokens: {a: "sha256:%s"}}
  vesta: {machine: "fixed:1", http: 127.0.0.1:0, dubbo: 127.0.0.1:0}
http_connections: 2
`, strings.Repeat("0", 64))
	at := map[string]net.Listener{}
	for _, d := range s.mounts.doors() {
		at[d.Setting] = d.listener
	}
	for name, l := range at {
		var conns [3]net.Conn
		for i := range conns {
			var err error
			if conns[i], err = net.Dial("tcp", l.Addr().String()); err != nil {
				t.Fatal(err)
			}
			defer conns[i].Close()
		}
		if err := conns[0].SetReadDeadline(time.Now().Add(patience.Long)); err != nil {
			t.Fatal(err)
		}
		if _, err := conns[0].Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%s: the oldest of three strangers where there are two places: %v; want its end", name, err)
		}
	}
	patience.Until(t, "the metrics tell of it", func() bool { // which is counted when the connection has ended
		_, metrics := get(t, s.listeners.http, "/metrics")
		return strings.Contains(metrics, `hapax_errors_total{api="leaf",code="limit_exceeded"} 1`)
	})
}

// TestForeignStrangers: at an address of a system whose every call shows a token, a client is
// known from a good one on; elsewhere, from its first whole request on.
func TestForeignStrangers(t *testing.T) {
	const tiny, leaf = "compat.tinyid.http", "compat.leaf.http"
	for name, tt := range map[string]struct {
		door, request, want string
		known               bool
	}{
		"a wrong token":       {tiny, "GET /tinyid/id/nextId?bizType=a&token=x HTTP/1.1", "token is error", false},
		"a wrong token, POST": {tiny, "POST /tinyid/id/nextId?bizType=a&token=x HTTP/1.1", "token is error", false},
		"no token":            {tiny, "GET /healthz HTTP/1.1", "ok", false},
		"a good token":        {tiny, "GET /tinyid/id/nextId?bizType=a&token=test HTTP/1.1", `"code":200`, true},
		"a good token, POST":  {tiny, "POST /tinyid/id/nextId?bizType=a&token=test HTTP/1.1", `"code":200`, true},
		"no token is needed":  {leaf, "GET /api/segment/get/a HTTP/1.1", "200 OK", true},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := serveCompat(t, `  leaf: {http: 127.0.0.1:0}
  tinyid: {http: 127.0.0.1:0, tokens: {a: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}}
tags: {a: {}}
http_connections: 2
`)
			at := map[string]string{}
			for _, d := range s.mounts.doors() {
				at[d.Setting] = d.listener.Addr().String()
			}
			dial := func() net.Conn {
				nc, err := net.Dial("tcp", at[tt.door])
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = nc.Close() })
				if err := nc.SetDeadline(time.Now().Add(patience.Long)); err != nil {
					t.Fatal(err)
				}
				return nc
			}
			ask := func(nc net.Conn) error {
				if _, err := io.WriteString(nc, tt.request+"\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"); err != nil {
					return err
				}
				res, err := http.ReadResponse(bufio.NewReader(nc), nil)
				if err != nil {
					return err
				}
				defer res.Body.Close()
				if text, err := httputil.DumpResponse(res, true); err != nil || !strings.Contains(string(text), tt.want) {
					t.Errorf("answered: %s, %v; want %s", text, err, tt.want)
				}
				return nil
			}
			first, second := dial(), dial()
			for _, nc := range []net.Conn{first, second} {
				if err := ask(nc); err != nil {
					t.Fatal(err)
				}
			}
			third, loser := dial(), first
			if tt.known {
				loser = third
			}
			if _, err := loser.Read(make([]byte, 1)); err == nil || isTimeout(err) {
				t.Errorf("the one that has to leave was told something, or stays: %v", err)
			}
			if tt.known {
				if err := ask(first); err != nil {
					t.Errorf("a known one: %v", err)
				}
			}
		})
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// leafDatabase makes a database with Leaf's table, and returns its URL.
func leafDatabase(t *testing.T, server *testservers.Server, rows string) (string, *sql.DB) {
	t.Helper()
	root, err := mysqlstore.OpenDB(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	for _, statement := range []string{
		"DROP TABLE IF EXISTS leaf_alloc",
		`CREATE TABLE leaf_alloc (biz_tag varchar(128) NOT NULL DEFAULT '' PRIMARY KEY, max_id bigint NOT NULL DEFAULT '1', step int NOT NULL,
			description varchar(256), update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP)`,
		"INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES " + rows,
	} {
		if _, err := root.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return server.URL, root
}

// A table that is away at the start is waited for: Leaf hung, or took every key for
// unknown for a minute. A row that was removed ends, and one that was added begins,
// though Leaf's cache kept the tags of an emptied table.
func TestLeafTableComesAndGoes(t *testing.T) {
	server := testservers.SharedMariaDB(t)
	if server.Addr == "" {
		t.Skip("needs a server of its own, and an existing one was given")
	}
	database, db := leafDatabase(t, server, "('test', 1, 1000000)")
	proxy := testservers.NewProxy(t, server.Addr)
	proxy.Cut()
	s, _ := serveCompat(t, "  leaf: {table: %q, http: 127.0.0.1:0}\nrefresh: 1s\n", proxy.URL(database))
	l := doorAt(t, s, "compat.leaf.http")
	if status, _ := get(t, l, "/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("/readyz while the table is away: %d", status)
	}
	if _, body := get(t, s.listeners.http, "/readyz"); !strings.Contains(body, `"degraded":true`) {
		t.Errorf("the server's own /readyz: %s", body)
	}
	proxy.Pass()
	await := func(key, want string) {
		t.Helper()
		body := ""
		for over := time.Now().Add(patience.Long); time.Now().Before(over); patience.Again() {
			if _, body = get(t, l, "/api/segment/get/"+key); body == want || strings.Contains(body, "{"+want+",") {
				return
			}
		}
		t.Fatalf("%s: %s; want %s", key, body, want)
	}
	if status, body := get(t, l, "/api/segment/get/test"); status != http.StatusOK || body != "1" {
		t.Errorf("when it is there: %d %s", status, body)
	}
	for path, want := range map[string]string{"/cache": "<td>test</td>\n            <td>true</td>", "/db": "<td>test</td>"} {
		if _, body := get(t, l, path); !strings.Contains(body, want) {
			t.Errorf("%s: %s", path, body)
		}
	}
	await("new", "id=-2")
	if _, err := db.ExecContext(t.Context(), "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('new', 7, 10)"); err != nil {
		t.Fatal(err)
	}
	await("new", "7")
	if _, err := db.ExecContext(t.Context(), "UPDATE leaf_alloc SET step = 0 WHERE biz_tag = 'new'"); err != nil {
		t.Fatal(err)
	}
	tags, err := s.mounts.host.Services["leaf table"].Tags(t.Context(), "", 100)
	if err != nil || slices.ContainsFunc(tags, func(t hapax.Tag) bool { return t.Deleted }) {
		t.Errorf("beside a row that cannot be used: %+v, %v; want no tag that is gone", tags, err)
	}
	await("new", "id=-3")
	if _, err := db.ExecContext(t.Context(), "DELETE FROM leaf_alloc"); err != nil {
		t.Fatal(err)
	}
	await("test", "id=-2")
	await("new", "id=-2")
}

func TestBadForeign(t *testing.T) {
	const table = `table: "mysql://u@h/d"`
	for _, tt := range []struct{ name, yaml, want string }{
		{"key", "leaf: {tabel: x}", "did you mean compat.leaf.table?"},
		{"network", "leaf: {allow: [10.0.0.0]}", "compat.leaf.allow"},
		{"open to all", "leaf: {http: '0.0.0.0:0'}", "allow, beside it"},
		{"allow and anyone", "leaf: {http: '0.0.0.0:0', allow: [10.0.0.0/8], allow_anyone: true}", "compat.leaf.allow_anyone"},
		{"zone", "leaf: {zone: Nowhere}", "compat.leaf.zone"},
		{"table", "leaf: {table: 'postgres://u:secret@h/d'}", "compat.leaf.table"},
		{"name", "leaf: {tree: 'zk://h', port: 1}", "compat.leaf.name"},
		{"port", "leaf: {tree: 'zk://h', name: n}", "compat.leaf.port"},
		{"ip", "leaf: {tree: 'zk://h', name: n, port: 1, ip: localhost}", "compat.leaf.ip"},
		{"tree", "leaf: {tree: 'zk://h,', name: n, port: 1}", "compat.leaf.tree"},
		{"no password", "leaf: {" + table + ", password_file: /nowhere}", "compat.leaf.password_file"},
		{"taken", "leaf: {}\ntags: {leaf-snowflake: {}}", "take them out of tags and pools"},
		{"token", "leaf: {}\ntokens: {a: {hash: 'sha256:" + strings.Repeat("0", 64) + "'}}", "compat.leaf.http"},
		{"nobody", "tinyid: {}", "compat.tinyid.tokens"},
		{"hash", "tinyid: {tokens: {a: [secret]}}", "compat.tinyid.tokens.a"},
		{"both", "tinyid: {databases: ['mysql://h/d'], tokens: {a: [secret]}}", "compat.tinyid.tokens"},
		{"database", "tinyid: {databases: ['mysql://u:secret@h']}", "compat.tinyid.databases"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Load(Sources{File: writeFile(t, "compat:\n  "+tt.yaml)})
			if err == nil {
				err = Check(t.Context(), c)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v; want %q", err, tt.want)
			}
		})
	}
	for _, good := range []string{"leaf: {http: '0.0.0.0:0', allow: [10.0.0.0/8]}", "leaf: {http: '0.0.0.0:0', allow_anyone: true}", "leaf: {table: native, tree: 'zk://h', name: n, port: 1}"} {
		c, err := Load(Sources{File: writeFile(t, "compat:\n  "+good)})
		if err == nil {
			err = Check(t.Context(), c)
		}
		if err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
}

// Passwords stand beside the URLs, in a file or a variable, and are never shown.
func TestForeignPasswords(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	for path, text := range map[string]string{one: "p@ss:w/rd\n", two: "first\n\n"} {
		if err := writeDurably(path, text); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		yaml, env string
	}{
		{"leaf: {table: 'mysql://u@h/d', password_file: " + one + "}", ""},
		{"leaf: {table: 'mysql://u@h/d'}", "p@ss:w/rd"},
		{"tinyid: {databases: ['mysql://u@h/a', 'mysql://u@h/b'], password_file: " + two + "}", ""},
	} {
		env := func(name string) (string, bool) {
			if tt.env != "" && name == leaf.PasswordEnv {
				return tt.env, true
			}
			return "", false
		}
		c, err := Load(Sources{File: writeFile(t, "compat:\n  "+tt.yaml), Env: env})
		if err == nil {
			err = Check(t.Context(), c)
		}
		if err != nil {
			t.Errorf("%s: %v", tt.yaml, err)
			continue
		}
		text, err := c.AppendYAML(nil)
		if err != nil || strings.Contains(string(text), "p@ss") || strings.Contains(string(text), "p%40ss") || strings.Contains(string(text), "first@") {
			t.Errorf("shown is %s, %v", text[max(0, len(text)-400):], err)
		}
	}
	for _, yaml := range []string{
		"leaf: {table: 'mysql://u:geheim@h/d', password_file: " + one + "}",
		"leaf: {table: 'mysql://u@h/d', password_file: " + two + "}",
	} {
		c, err := Load(Sources{File: writeFile(t, "compat:\n  "+yaml)})
		if err == nil {
			err = Check(t.Context(), c)
		}
		if err == nil || strings.Contains(err.Error(), "geheim") || strings.Contains(err.Error(), "first") {
			t.Errorf("%s: %v", yaml, err)
		}
	}
}
