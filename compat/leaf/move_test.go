package leaf_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/internal/testdb"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/memstore"
)

func testMoves(t *testing.T, server *testservers.Server) {
	db := testdb.New(t, server, testdb.Leaf, "INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('a', 2001, 1000), ('b', 7, 10), ('bad', 1, -7)")
	table := openTable(t, db.URL, leaf.TableOptions{})
	native := memstore.New()
	def, err := hapax.Tag{Name: "b", Start: 5000}.WithDefaults()
	if err == nil {
		_, err = native.CreateTag(t.Context(), def, hapax.CreateExplicit)
	}
	if err != nil {
		t.Fatal(err)
	}
	plan := func(o leaf.MoveOptions) []leaf.Move {
		t.Helper()
		o.Watch = time.Millisecond
		all, err := leaf.PlanMoves(t.Context(), table, native, o)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	// The session of the test's own handle is one of another client.
	if _, err := leaf.PlanMoves(t.Context(), table, native, leaf.MoveOptions{Watch: time.Millisecond}); !errors.Is(err, hapax.ErrStoreUnsafe) || !strings.Contains(err.Error(), "sessions") {
		t.Errorf("with another session: %v; want ErrStoreUnsafe", err)
	}
	all := plan(leaf.MoveOptions{IgnoreLiving: true})
	if len(all) != 3 || all[0].Before != 0 || all[0].After != 12001 || all[1].Before != 5000 || all[1].After != 5000 || !errors.Is(all[2].Reason, hapax.ErrStoreCorrupt) || strings.Contains(all[2].Reason.Error(), "margin") {
		t.Fatalf("plan: %+v", all)
	}
	if _, err := native.Tag(t.Context(), "a"); !errors.Is(err, hapax.ErrTagNotFound) {
		t.Errorf("a plan has written something: %v", err)
	}
	steps := 0
	for range 2 { // safe to repeat
		if err := leaf.ApplyMoves(t.Context(), native, all, func(int, int) { steps++ }); err != nil {
			t.Fatal(err)
		}
	}
	if steps != 6 {
		t.Errorf("progress was told %d times; want 6", steps)
	}
	for _, m := range plan(leaf.MoveOptions{IgnoreLiving: true}) {
		if m.Changes() {
			t.Errorf("after the move there is something left to do: %+v", m)
		}
	}
	if a, err := native.Allocate(t.Context(), "a", 1, ""); err != nil || a.Grant.Lo != 12001 || a.Tag.Step != 1000 {
		t.Errorf("got %+v, error %v; want from 12001 with step 1000", a, err)
	}
	if again := plan(leaf.MoveOptions{IgnoreLiving: true, Margin: 50000}); again[0].After != 52001 || again[1].After != 50007 {
		t.Errorf("with a margin: %+v", again)
	}

	// A row that moves meanwhile is a sign of life.
	moved := make(chan error, 1)
	go func() {
		time.Sleep(100 * time.Millisecond)
		_, err := table.Allocate(t.Context(), "a", 1, "")
		moved <- err
	}()
	_, err = leaf.PlanMoves(t.Context(), table, native, leaf.MoveOptions{Watch: time.Second})
	if !errors.Is(err, hapax.ErrStoreUnsafe) || !strings.Contains(err.Error(), "row a went from 2001 to 2002") {
		t.Errorf("with a row that moves: %v; want ErrStoreUnsafe", err)
	}
	if err := <-moved; err != nil {
		t.Error(err)
	}
}

func TestReadProperties(t *testing.T) {
	for _, c := range []struct {
		name, text, want, wrong string
	}{
		{
			"server", `
# comment
leaf.name=com.sankuai.leaf.opensource.test
leaf.segment.enable=true
leaf.jdbc.url=jdbc:mysql://db.example:3307/leaf?useUnicode=true&characterEncoding=utf8
leaf.jdbc.username = leaf
leaf.jdbc.password=p\u0040ss word\=1
leaf.snowflake.enable=true
leaf.snowflake.zk.address=zk1:2181, zk2:2181
leaf.snowflake.port=2182
`, `compat:
  leaf:
    table: "mysql://leaf@db.example:3307/leaf"
    # The password is not shown: put it into the variable HAPAX_LEAF_PASSWORD, or
    # into a file that password_file names.
    tree: "zk://zk1:2181,zk2:2181"
    name: "com.sankuai.leaf.opensource.test"
    port: 2182
    http: 127.0.0.1:8088
    allow: []
`, "",
		},
		{
			"starter", `
leaf.name=demo
leaf.segment.enable:true
leaf.segment.url=jdbc:mysql://10.0.0.1/leaf?\
    useSSL=true
leaf.segment.username=leaf
leaf.segment.password=
leaf.snowflake.enable=true
leaf.snowflake.address=10.0.0.2
leaf.snowflake.port=2181
`, `compat:
  leaf:
    table: "mysql://leaf@10.0.0.1:3306/leaf?tls=preferred"
    tree: "zk://10.0.0.2"
    name: "demo"
    port: 2181
    http: 127.0.0.1:8088
    allow: []
`, "",
		},
		{"neither", "leaf.name=x\nleaf.segment.enable=false\n", "compat:\n  leaf:\n    http: 127.0.0.1:8088\n    allow: []\n", ""},
		{"no url", "leaf.segment.enable=true\n", "", "leaf.jdbc.url"},
		{"two hosts", "leaf.segment.enable=true\nleaf.jdbc.url=jdbc:mysql://a:1,b:2/leaf\nleaf.jdbc.password=geheim\n", "", "leaf.jdbc.url"},
		{"no truth", "leaf.segment.enable=yes\n", "", "leaf.segment.enable"},
		{"no name", "leaf.snowflake.enable=true\nleaf.snowflake.zk.address=a:1\nleaf.snowflake.port=1\n", "", "leaf.name"},
		{"bad port", "leaf.name=x\nleaf.snowflake.enable=true\nleaf.snowflake.zk.address=a:1\nleaf.snowflake.port=0\n", "", "leaf.snowflake.port"},
		{"no address", "leaf.name=x\nleaf.snowflake.enable=true\nleaf.snowflake.port=1\n", "", "leaf.snowflake.zk.address"},
		{"bad escape", "a=\\u12x4", "", "line 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := leaf.ReadProperties(strings.NewReader(c.text))
			if c.wrong != "" {
				if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), c.wrong) || strings.Contains(err.Error(), "geheim") {
					t.Errorf("error is %v; want ErrInvalidArgument that names %s", err, c.wrong)
				}
				return
			}
			if err != nil || got.YAML("") != c.want {
				t.Errorf("got %s\nerror %v; want %s", got.YAML(""), err, c.want)
			}
		})
	}
}

func TestPasswordOfTable(t *testing.T) {
	c, err := leaf.ReadProperties(strings.NewReader("leaf.segment.enable=true\nleaf.jdbc.url=jdbc:mysql://h/d\nleaf.jdbc.username=leaf\nleaf.jdbc.password=p\\u0040ss word\\=1\n"))
	if err != nil || c.TableURL() != "mysql://leaf:p%40ss%20word=1@h:3306/d" {
		t.Errorf("the URL with the password is %s, error %v", c.TableURL(), err)
	}
	if text := fmt.Sprintf("%v %+v %#v", c, c, c); strings.Contains(text, "p@ss") || strings.Contains(text, "p%40ss") {
		t.Errorf("printed: %s", text)
	}
	if text := c.YAML("/etc/leaf.password"); strings.Contains(text, "word=1") || !strings.Contains(text, `password_file: "/etc/leaf.password"`) {
		t.Error(text)
	}
	var by leaf.Config
	if err := by.SetTable("mysql://leaf:p%40ss%20word=1@h:3306/d"); err != nil || by.TableURL() != c.TableURL() || strings.Contains(by.Table, "40ss") {
		t.Errorf("set by a URL: %v, %v", by, err)
	}
}

func FuzzReadProperties(f *testing.F) {
	f.Add("leaf.segment.enable=true\nleaf.jdbc.url=jdbc:mysql://h/d\n")
	f.Add("a=\\u0041\\\n b\\:c : d\n!x\n")
	f.Fuzz(func(_ *testing.T, text string) {
		c, err := leaf.ReadProperties(strings.NewReader(text))
		if err == nil {
			_ = c.YAML("")
		}
	})
}
