package e2e

import (
	"bytes"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// The database's password gets into nothing that anybody reads: what the commands print,
// with success or without, the log, the pages, and the files of the store.
func TestSequencesKeepTheSecret(t *testing.T) {
	t.Parallel()
	const secret = "S3cr3t0fTheShop"
	k := &killers{address: testservers.SharedPostgres(t).URL}
	k.admin = openSQL(t, k.address)
	k.server = serve(t, t.TempDir(), []string{"HAPAX_AUTO_CREATE=false"}) // of another store
	m := newMarket(t, k.server, k.admin, testservers.NewProxy(t, strings.TrimPrefix(k.server.url, "http://")), k.address)
	role := strings.TrimSuffix(m.prefix, ".") + "_owner"
	m.exec(k.admin, "CREATE ROLE "+role+" LOGIN SUPERUSER PASSWORD '"+secret+"'")
	t.Cleanup(func() { _, _ = k.admin.Exec("DROP ROLE " + role) })
	u, err := url.Parse(k.address)
	if err != nil {
		t.Fatal(err)
	}
	u.User, u.Path = url.UserPassword(role, secret), "/"+strings.TrimSuffix(m.prefix, ".")
	good := u.String()
	u.Host = freeAddress(t)
	bad := u.String()
	m.exec(m.db, "INSERT INTO orders SELECT FROM generate_series(1, 30)")

	dir, data := t.TempDir(), t.TempDir()
	write(t, data, "hapax.yaml", "tags:\n  lost: {floor_from: [{url: 'env:LOST_DB', table: orders, column: id}]}\n  wrong: {floor_from: [{url: 'env:SHOP_DB', table: nothing, column: id}]}\n")
	env := []string{"SHOP_DB=" + good, "LOST_DB=" + bad}
	s := serve(t, data, append(env, "HAPAX_DATA="+filepath.Join(data, "hapax-data")), "--config", filepath.Join(data, "hapax.yaml"))
	seen := 0
	look := func(where, text string) {
		t.Helper()
		seen += len(text)
		if at := strings.Index(text, secret); at >= 0 {
			t.Errorf("%s shows the password: %s", where, text[max(0, at-200):min(len(text), at+100)])
		}
	}
	try := func(want int, args ...string) string {
		t.Helper()
		r := runWith(t, dir, "", append(env, "HAPAX_SERVER="+s.url), args...)
		shown := strings.ReplaceAll(strings.Join(args, " "), secret, "…")
		if r.code != 0 != (want != 0) {
			t.Errorf("%s: exit code %d: %s", shown, r.code, strings.ReplaceAll(r.err, secret, "…"))
		}
		look("hapax "+shown, r.out+r.err)
		return r.out + r.err
	}
	quick := []string{"--sample", "0s", "--watch", "1ms"}
	for _, given := range []string{"env:SHOP_DB", good} {
		with := func(flags ...string) []string {
			return append(append([]string{"import", "sequences", given}, quick...), flags...)
		}
		for _, flags := range [][]string{nil, {"--native"}, {"--dry-run"}, {"--apply"}, {"--apply", "--json"}, {"--verify"}, {"--verify", "--json"}, {"--undo", "--dry-run"}, {"--undo"}, {"--apply"}, {"--undo"}} {
			try(0, with(flags...)...)
		}
	}
	try(0, append(append([]string{"import", "sequences", "env:SHOP_DB"}, quick...), "--apply")...)
	for _, given := range []string{"env:LOST_DB", bad, "nothing://u:" + secret + "@h", "postgres://u:" + secret + "@h:port/x", "mysql://u:" + secret + "@" + u.Host + "/x", "redis://u:" + secret + "@" + u.Host + "/0", "mongodb://u:" + secret + "@" + u.Host + "/x?serverSelectionTimeoutMS=100"} {
		try(1, append([]string{"import", "sequences", given}, quick...)...)
		try(1, "audit", "--column", given, "orders.id")
	}
	try(1, "tags", "set", "orders", "--floor-from", good+",orders,id")
	try(0, "tags", "set", "orders", "--floor-from", "env:SHOP_DB,orders,id")
	try(1, "tags", "set", "orders", "--floor-from", "env:LOST_DB,orders,id")
	if out := try(0, "tags", "show", "orders", "--json"); !strings.Contains(out, `"url":"env:SHOP_DB"`) {
		t.Errorf("the tag is %s", out)
	}
	try(0, "audit", "--column", "env:SHOP_DB", "--tag", "orders", "orders.id")
	try(0, "audit", "--column", good, "--tag", "orders", "orders.id")
	for _, tag := range []string{"lost", "wrong"} {
		if out := try(1, "next", tag); !strings.Contains(out, "floor_unread") && !strings.Contains(out, "columns") {
			t.Errorf("next %s: %s", tag, out)
		}
	}
	number := strings.TrimSpace(try(0, "next", "orders"))
	try(0, "trace", number)
	try(0, "status")
	try(0, "tags", "list", "--all", "--json")
	patience.Until(t, "the log tells of the columns", func() bool { return strings.Count(s.logged(), "its columns cannot be read") >= 2 }, s)
	for _, path := range []string{"/readyz", "/healthz", "/metrics", "/v1/tags", "/v1/tags/orders", "/v1/tags/lost/next", "/console/", "/console/tags", "/console/tag?name=orders", "/console/tag?name=lost", "/console/log", "/console/doctor"} {
		resp, err := http.Get(s.url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		look(path, string(body))
	}
	s.stop()
	if out := runWith(t, data, "", append(env, "HAPAX_DATA="+filepath.Join(data, "hapax-data")), "doctor", "--config", filepath.Join(data, "hapax.yaml")); true {
		look("hapax doctor", out.out+out.err)
		if !strings.Contains(out.out+out.err, "cannot be read") {
			t.Errorf("doctor says %s", out.out+out.err)
		}
	}
	look("the log", s.logged())
	files := 0
	err = filepath.WalkDir(filepath.Join(data, "hapax-data"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files++
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("%s holds the password", path)
		}
		return err
	})
	if err != nil || files == 0 || seen < 10_000 {
		t.Errorf("%d files and %d bytes were looked at, %v", files, seen, err)
	}
}
