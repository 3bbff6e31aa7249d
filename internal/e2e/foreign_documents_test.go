package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hapax-id/hapax/internal/compat/testdb"
	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A page is a document whose commands are run in their order.
type page struct {
	t      *testing.T
	path   string
	dir    string
	local  *strings.Replacer
	blocks []string
}

func openPage(t *testing.T, path, dir string, local ...string) *page {
	t.Helper()
	return &page{t: t, path: path, dir: dir, local: strings.NewReplacer(local...), blocks: blocks(t, path, "sh")}
}

// next returns the next block, which must have a text.
func (p *page) next(holds string) string {
	p.t.Helper()
	if len(p.blocks) == 0 || !strings.Contains(p.blocks[0], holds) {
		p.t.Fatalf("%s: the next commands are not those with %q, but %q", p.path, holds, p.blocks[:min(1, len(p.blocks))])
	}
	text := p.blocks[0]
	p.blocks = p.blocks[1:]
	return p.local.Replace(text)
}

// run runs the next block, and checks that it prints what it says.
func (p *page) run(holds string) string {
	p.t.Helper()
	return p.shell(p.next(holds))
}

func (p *page) shell(script string) string {
	p.t.Helper()
	env := []string{"PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH")}
	out := shellSession(p.t, p.dir, env, script)
	printsInOrder(p.t, out, promised(script))
	return out
}

// serve starts the server that a command line starts.
func (p *page) serve(line string) *serving {
	p.t.Helper()
	line = strings.TrimSpace(line)
	const command = "hapax serve "
	if !strings.HasPrefix(line, command) || strings.Contains(line, "\n") {
		p.t.Fatalf("%s: this is not one command that serves: %s", p.path, line)
	}
	var args []string
	for i, part := range strings.Split(strings.TrimPrefix(line, command), "'") { // every second one was quoted
		if i%2 == 1 {
			args = append(args, part)
		} else {
			args = append(args, strings.Fields(part)...)
		}
	}
	return serve(p.t, p.dir, nil, args...)
}

// testLeafPage follows the page from the first command to the way back.
func testLeafPage(t *testing.T, server *testservers.Server) {
	testservers.Require(t, []string{"curl"})
	db := newForeignDB(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('test', 4711, 10), ('it''s', 1, 10)")
	keeper := testservers.ZooKeeper(t)
	putLeafNode(t, keeper, "demo", "10.0.0.1:8080-0000000000", time.Now().Add(-time.Hour))
	account := db.limited("p@ss", "SELECT, UPDATE ON leaf_alloc")
	dir, at, other := t.TempDir(), freeAddress(t), freeAddress(t)
	write(t, dir, "leaf.properties", fmt.Sprintf(`leaf.name=demo
leaf.segment.enable=true
leaf.jdbc.url=jdbc:mysql://%s/%s
leaf.jdbc.username=%s
leaf.jdbc.password=p@ss
leaf.snowflake.enable=true
leaf.snowflake.zk.address=%s
leaf.snowflake.port=8080
`, db.host, db.name, account, strings.TrimPrefix(keeper.URL, "zk://")))
	p := openPage(t, "docs/coming-from-leaf.md", dir,
		"mysql://leaf@127.0.0.1:3306/leaf", db.url, "127.0.0.1:8088", at, "127.0.0.1:8080", other,
		"--dry-run --data", "--watch 100ms --dry-run --data", "--apply --data", "--watch 100ms --apply --data")
	s := p.serve(p.next("hapax serve --compat"))
	p.run("/api/segment/get/test")
	p.run("--write-password")
	adopt := p.next("hapax adopt --foreign leaf")
	if out := p.run("hapax leaf nodes"); !strings.Contains(out, "10.0.0.1:8080-0000000000") {
		t.Errorf("the nodes are %s", out)
	}
	leaf := serve(t, t.TempDir(), nil, "--compat", fmt.Sprintf(`{leaf: {table: %q, http: %q}}`, db.url, other)) // it stands for Leaf's own
	if out := p.run("hapax audit"); !strings.Contains(out, "200") {
		t.Errorf("the audit says %s", out)
	}
	leaf.stop()
	s.stop()
	p.shell(adopt)
	if out := p.run("--dry-run"); !strings.Contains(out, "test\t-\t") || !strings.Contains(out, "worker leaf-snowflake/0\t-\t") {
		t.Errorf("the dry run: %s", out)
	}
	move, start, _ := strings.Cut(p.next("--apply"), "hapax serve")
	p.shell(move)
	native := write(t, dir, "native.yaml", p.local.Replace(read(t, dir, "native.yaml")))
	s = p.serve("hapax serve" + strings.Replace(start, "native.yaml", native, 1))
	_, id := answers(t, "http://"+at+"/api/segment/get/test")
	s.stop()
	p.run("--undo")
	if next := fmt.Sprint(db.number("SELECT max_id FROM leaf_alloc WHERE biz_tag = 'test'") - 1); next != id {
		t.Errorf("Leaf goes on above %s, and %s was issued last", next, id)
	}
	if db.number("SELECT max_id FROM leaf_alloc WHERE biz_tag = 'it''s'") < 101 {
		t.Error("the row with a quote was left behind")
	}
	if p.next("LeafRoutes"); len(p.blocks) > 0 {
		t.Errorf("not run: %q", p.blocks)
	}
}

// testTinyIDPage does the same for TinyID.
func testTinyIDPage(t *testing.T, server *testservers.Server) {
	testservers.Require(t, []string{"curl"})
	db := newForeignDB(t, server, append(testdb.TinyID, strings.Split(strings.TrimSuffix(strings.TrimSpace(blocks(t, "docs/coming-from-tinyid.md", "sql")[0]), ";"), ";\n")...)...)
	account := db.limited("geheim", "SELECT, UPDATE ON tiny_id_info;SELECT ON tiny_id_token")
	dir, at, other := t.TempDir(), freeAddress(t), freeAddress(t)
	write(t, dir, "application.properties", fmt.Sprintf(`server.port=9999
server.context-path=/tinyid
datasource.tinyid.names=primary
datasource.tinyid.primary.url=jdbc:mysql://%s/%s
datasource.tinyid.primary.username=%s
datasource.tinyid.primary.password=geheim
`, db.host, db.name, account))
	p := openPage(t, "docs/coming-from-tinyid.md", dir,
		"mysql://tinyid@127.0.0.1:3306/tinyid", db.url, "127.0.0.1:9999", at, "127.0.0.1:9998", other,
		"--dry-run --data", "--watch 100ms --dry-run --data", "--apply --data", "--watch 100ms --apply --data")
	s := p.serve(p.next("hapax serve --compat"))
	p.run("nextIdSimple")
	p.run("--write-password")
	tinyid := serve(t, t.TempDir(), nil, "--compat", fmt.Sprintf(`{tinyid: {databases: [%q], http: %q}}`, db.url, other)) // it stands for TinyID's own
	if out := p.run("hapax audit"); !strings.Contains(out, "4000") && !strings.Contains(out, "4,000") {
		t.Errorf("the audit says %s", out)
	}
	tinyid.stop()
	s.stop()
	if out := p.run("--dry-run"); !strings.Contains(out, "order\t-\t") {
		t.Errorf("the dry run: %s", out)
	}
	move, start, _ := strings.Cut(p.next("--apply"), "hapax serve")
	p.shell(move)
	native := write(t, dir, "native.yaml", p.local.Replace(read(t, dir, "native.yaml")))
	s = p.serve("hapax serve" + strings.Replace(start, "native.yaml", native, 1))
	_, id := answers(t, "http://"+at+"/tinyid/id/nextIdSimple?bizType=order&token="+tinyidToken)
	s.stop()
	p.run("--undo")
	if last := fmt.Sprint(db.number("SELECT max_id FROM tiny_id_info WHERE biz_type = 'order'")); last != id {
		t.Errorf("TinyID goes on above %s, and %s was issued last", last, id)
	}
	p.run("hapax tags create order --delta 2")
	if len(p.blocks) > 0 {
		t.Errorf("not run: %q", p.blocks)
	}
}

// putLeafNode makes a node as a Leaf has it.
func putLeafNode(t *testing.T, server *testservers.Server, service, node string, at time.Time) {
	t.Helper()
	conn, _, err := zk.Connect([]string{strings.Trim(strings.TrimPrefix(server.URL, "zk://"), "/")}, 10*time.Second, zk.WithLogInfo(false), zk.WithDialer(patience.Dial))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	path := ""
	for _, part := range []string{"snowflake", service, "forever"} {
		path += "/" + part
		if _, err := conn.Create(path, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && err != zk.ErrNodeExists {
			t.Fatal(err)
		}
	}
	data := fmt.Appendf(nil, `{"ip":"10.0.0.1","port":"1","timestamp":%d}`, at.UnixMilli())
	_, err = conn.Create(path+"/"+node, data, 0, zk.WorldACL(zk.PermAll))
	if err == zk.ErrNodeExists {
		_, err = conn.Set(path+"/"+node, data, -1)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
