package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// limited makes an account that may do what the foreign system needs, and returns its
// name.
func (d foreignDB) limited(password, grants string) string {
	name := "u" + d.name[1:20]
	d.run(fmt.Sprintf("CREATE USER %s@'127.0.0.1' IDENTIFIED BY '%s'", name, password))
	for grant := range strings.SplitSeq(grants, ";") {
		what, table, _ := strings.Cut(grant, " ON ")
		d.run(fmt.Sprintf("GRANT %s ON %s.%s TO %s@'127.0.0.1'", what, d.name, table, name))
	}
	return name
}

// awaitQuiet waits until no session of the account is left.
func (d foreignDB) awaitQuiet(account string) {
	d.t.Helper()
	patience.Until(d.t, "no session is left", func() bool {
		return d.number("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = '"+account+"'") == 0
	})
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What import leaf prints is what serve reads, without a password in it; and the move
// to native tags goes on above the rows.
func testImportLeaf(t *testing.T, server *testservers.Server) {
	db := newForeignDB(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 4711, 10), ('big', 1000000, 1000), ('bad', 1, 0)")
	account := db.limited("p@ss:w/rd", "SELECT, UPDATE ON leaf_alloc")
	dir, at := t.TempDir(), freeAddress(t)
	properties := write(t, dir, "leaf.properties", fmt.Sprintf(`leaf.name=demo
leaf.segment.enable=true
leaf.jdbc.url=jdbc:mysql://%s/%s?useUnicode=true
leaf.jdbc.username=%s
leaf.jdbc.password=p@ss:w/rd
leaf.snowflake.enable=false
`, db.host, db.name, account))
	secret := filepath.Join(dir, "secret")
	out := ok(t, dir, "import", "leaf", properties, "--write-password", secret)
	if strings.Contains(out, "p@ss") || strings.Contains(out, "p%40ss") {
		t.Fatalf("the password is printed: %s", out)
	}
	if info, err := os.Stat(secret); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the password: %v, %v", info, err)
	}
	file := write(t, dir, "hapax.yaml", strings.Replace(out, "127.0.0.1:8088", at, 1))
	if out := ok(t, dir, "serve", "--print-config", "--config", file); strings.Contains(out, "p@ss") {
		t.Error("the password is printed with the configuration")
	}
	s := serve(t, dir, nil, "--config", file)
	for i := range 30 {
		if status, body := answers(t, "http://"+at+"/api/segment/get/test"); status != http.StatusOK || body != fmt.Sprint(4711+i) {
			t.Fatalf("number %d is %d %s", i, status, body)
		}
	}
	move := []string{"import", "leaf", properties, "--data", filepath.Join(dir, "hapax-data"), "--watch", "100ms"}
	if r := run(t, dir, append(move, "--dry-run")...); r.code == 0 || !strings.Contains(r.err, "still issuing") {
		t.Errorf("with a node that is alive: %+v", r)
	}
	if r := run(t, dir, append(move, "--dry-run", "--ignore-living")...); !strings.Contains(r.out, "big\t-\t11000000\tnew; row closed") {
		t.Errorf("when told to ignore it: %+v", r)
	}
	if strings.Contains(s.logged(), "p@ss") {
		t.Error("the password is in the log")
	}
	s.stop()
	db.awaitQuiet(account)

	above := db.number("SELECT max_id FROM leaf_alloc WHERE biz_tag = 'test'") + 10_000_000
	want := []string{"bad\t-\t-\thapax: ", "big\t-\t11000000\tnew; row closed", fmt.Sprintf("test\t-\t%d\tnew", above)}
	for _, how := range []string{"--dry-run", "--apply --dry-run", "--apply", "--apply"} {
		r := run(t, dir, append(move, strings.Fields(how)...)...)
		if !strings.Contains(r.err, "may see its own sessions alone") {
			t.Errorf("%s does not say which sessions it cannot see: %s", how, r.err)
		}
		if undo := " import leaf " + properties + " --undo --data " + filepath.Join(dir, "hapax-data"); strings.Contains(r.err, undo) != (how == "--apply") {
			t.Errorf("%s: the way back is %q; want %q with --apply", how, r.err, undo)
		}
		if r.code != 1 || !strings.Contains(r.err, "1 of the rows cannot be moved") {
			t.Errorf("%s: %+v", how, r)
		}
		for _, line := range want {
			if !strings.Contains(r.out, line) {
				t.Errorf("%s: %s; want %q", how, r.out, line)
			}
		}
		if how == "--apply" {
			want = []string{"big\t11000000\t11000000\tnothing to do"}
		}
	}
	if _, err := db.ExecContext(t.Context(), "UPDATE leaf_alloc SET max_id = max_id + step WHERE biz_tag = 'test'"); err == nil || !strings.Contains(err.Error(), "1690") {
		t.Errorf("an old Leaf that is started again: %v; want error 1690", err)
	}
	file = write(t, dir, "hapax.yaml", strings.Replace(ok(t, dir, "import", "leaf", properties, "--native"), "127.0.0.1:8088", at, 1))
	s = serve(t, dir, nil, "--config", file)
	for key, want := range map[string]string{"test": fmt.Sprint(above), "big": "11000000"} {
		if status, body := answers(t, "http://"+at+"/api/segment/get/"+key); status != http.StatusOK || body != want {
			t.Errorf("natively %s is %d %s; want %s", key, status, body, want)
		}
	}
	for _, key := range []string{"bad", "never", "snowflake"} { // created by use it would begin at 1
		if status, body := answers(t, "http://"+at+"/api/segment/get/"+key); status != http.StatusInternalServerError || !strings.Contains(body, "id=-2") {
			t.Errorf("natively %s is %d %s", key, status, body)
		}
	}
	if status, body := answers(t, "http://"+at+"/api/snowflake/get/x"); status != http.StatusInternalServerError {
		t.Errorf("a native snowflake, where the file has the mode switched off: %d %s", status, body)
	}
	for path, want := range map[string]string{"/db": "<td>big</td>", "/cache": "<td>test</td>\n            <td>true</td>"} {
		if _, body := answers(t, "http://"+at+path); !strings.Contains(body, want) {
			t.Errorf("%s: %s", path, body)
		}
	}
	s.stop()
}

// The worker IDs of Leaf's tree are carried over above the time of its nodes.
func TestImportLeafTree(t *testing.T) {
	t.Parallel()
	server := testservers.SharedZooKeeper(t)
	name := unusedName("imported")
	put := func(node string, at time.Time) { putLeafNode(t, server, name, node, at) }
	put("10.0.0.1:1-0000000000", time.Now().Add(-time.Hour))
	put("10.0.0.2:1-0000000007", time.Now().Add(time.Minute)) // its clock is ahead of ours
	dir := t.TempDir()
	move := []string{"import", "leaf", "--tree", server.URL, "--name", name, "--data", filepath.Join(dir, "hapax-data"), "--watch", "100ms"}
	for _, c := range []struct{ how, want string }{
		{"--dry-run", "node 10.0.0.2:1-0000000007 has time until"}, {"--apply", "has time until"}, {"--apply --ignore-living", "worker ID 7"},
	} {
		if r := run(t, dir, append(move, strings.Fields(c.how)...)...); r.code == 0 || !strings.Contains(r.err, c.want) {
			t.Errorf("%s with a node ahead of the clock: %+v", c.how, r)
		}
	}
	native := append(slices.Clone(move[:6]), "--native")
	put("10.0.0.2:1-0000000007", time.Now().Add(-10*time.Second))
	if r := run(t, dir, append(move, "--apply")...); r.code != 0 || !strings.Contains(r.out, "worker leaf-snowflake/7\t-\t") || !strings.Contains(r.err, "--undo --data") {
		t.Errorf("the move: %+v", r)
	}
	block := ok(t, dir, native...)
	if !strings.Contains(block, "    tree: native\n    workers: 8-1023") || strings.Contains(block, "table") {
		t.Errorf("the block to go on with is\n%s", block)
	}
	at := freeAddress(t)
	s := serve(t, dir, nil, "--config", write(t, dir, "native.yaml", strings.Replace(block, "127.0.0.1:8088", at, 1)))
	_, id := answers(t, "http://"+at+"/api/snowflake/get/x")
	if _, body := answers(t, "http://"+at+"/decodeSnowflakeId?snowflakeId="+id); !strings.Contains(body, `"workerId":"8"`) {
		t.Errorf("%s is %s; want worker ID 8, which no Leaf has", id, body)
	}
	if r := run(t, dir, append(move, "--undo")...); r.code == 0 || !strings.Contains(r.err, "worker ID 8 of pool leaf-snowflake is leased") {
		t.Errorf("the way back while the server issues: %+v", r)
	}
	s.stop()
	if r := run(t, dir, append(move[:6:6], "--data", filepath.Join(dir, "other"), "--watch", "100ms", "--apply")...); r.code == 0 || !strings.Contains(r.err, "was closed for another store") {
		t.Errorf("the move to another store: %+v", r)
	}
	if r := run(t, dir, append(move, "--dry-run")...); r.code != 0 || strings.Count(r.out, "nothing to do") != 2 {
		t.Errorf("a repetition: %+v", r)
	}
	if r := run(t, dir, append(move, "--undo")...); r.code != 0 || !strings.Contains(r.err, "open again: the tree") {
		t.Errorf("the way back: %+v", r)
	}
	if r := run(t, dir, native...); r.code == 0 || !strings.Contains(r.err, "give --apply first") {
		t.Errorf("a block of native worker IDs beside an open tree: %+v", r)
	}
	out := ok(t, dir, "workers", "list", "leaf-snowflake", "--data", filepath.Join(dir, "hapax-data"))
	if strings.Count(out, "leaf-snowflake") != 3 { // those of the nodes, and the server's
		t.Errorf("the workers are %s", out)
	}
}

// The same for TinyID, whose clients go on with their tokens.
func testImportTinyID(t *testing.T, server *testservers.Server) {
	db := newForeignDB(t, server, append(testdb.TinyID, "INSERT INTO tiny_id_info (biz_type, max_id, step, delta, remainder, version) VALUES ('test', 100, 10, 1, 0, 1), ('odd', 1000, 10, 2, 1, 1)",
		"INSERT INTO tiny_id_token (token, biz_type) VALUES ('0f673adf80504e2eaa552f5d791b644c', 'test'), ('0f673adf80504e2eaa552f5d791b644c', 'odd')")...)
	account := db.limited("geheim", "SELECT, UPDATE ON tiny_id_info;SELECT ON tiny_id_token")
	dir, at := t.TempDir(), freeAddress(t)
	properties := write(t, dir, "application.properties", fmt.Sprintf(`server.port=9999
server.context-path=/tinyid
datasource.tinyid.names=primary
datasource.tinyid.primary.url=jdbc:mysql://%s/%s
datasource.tinyid.primary.username=%s
datasource.tinyid.primary.password=geheim
`, db.host, db.name, account))
	out := ok(t, dir, "import", "tinyid", properties)
	if strings.Contains(out, "geheim") || !strings.Contains(out, "HAPAX_TINYID_PASSWORD") {
		t.Fatalf("printed is %s", out)
	}
	file := write(t, dir, "hapax.yaml", strings.Replace(out, "127.0.0.1:9999", at, 1))
	s := serve(t, dir, []string{"HAPAX_TINYID_PASSWORD=geheim"}, "--config", file)
	const ask = "/tinyid/id/nextIdSimple?token=0f673adf80504e2eaa552f5d791b644c&bizType="
	if _, body := answers(t, "http://"+at+ask+"test&batchSize=3"); body != "101,102,103" {
		t.Errorf("beside TinyID: %s", body)
	}
	s.stop()
	db.awaitQuiet(account)
	r := run(t, dir, "import", "tinyid", properties, "--data", filepath.Join(dir, "hapax-data"), "--watch", "100ms", "--apply", "--json")
	if r.code != 0 || !strings.Contains(r.out, `{"tag":"odd","after":"1101","delta":2,"remainder":1,"closes":"its biz_type begins with ~moved:"}`) {
		t.Fatalf("the move: %+v", r)
	}
	native := ok(t, dir, "import", "tinyid", properties, "--native")
	if strings.Contains(native, "0f673adf") || strings.Count(native, "sha256:") != 2 {
		t.Errorf("the native configuration: %s", native)
	}
	file = write(t, dir, "hapax.yaml", strings.Replace(native, "127.0.0.1:9999", at, 1))
	s = serve(t, dir, nil, "--config", file)
	top := db.number("SELECT max_id FROM tiny_id_info WHERE biz_type LIKE '~moved:________~test'") + 1 + 100
	for _, c := range []struct{ route, want string }{
		{ask + "test", fmt.Sprint(top)},
		{ask + "odd&batchSize=2", "1101,1103"},
		// The server may have taken the next ten for itself already, or not yet.
		{"/tinyid/id/nextSegmentIdSimple?token=0f673adf80504e2eaa552f5d791b644c&bizType=odd", "1120,1122,1130,2,1 or 1110,1112,1120,2,1"},
		{"/tinyid/id/nextId?token=wrong&bizType=test", `{"data":null,"code":5,"message":"token is error"}`},
		{"/tinyid/id/nextId?token=0f673adf80504e2eaa552f5d791b644c&bizType=other", `{"data":null,"code":5,"message":"token is error"}`},
	} {
		if _, body := answers(t, "http://"+at+c.route); !slices.Contains(strings.Split(c.want, " or "), body) {
			t.Errorf("natively %s: %s; want %s", c.route, body, c.want)
		}
	}
	s.stop()
}
