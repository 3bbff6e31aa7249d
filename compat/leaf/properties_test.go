package leaf_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/leaf"
	"github.com/hapax-id/hapax/internal/compat/accounting"
)

// shipped is the file that Leaf ships, with the settings of a mode filled in where one is on.
func shipped(address, mode, url string) string {
	text := "leaf.name=com.sankuai.leaf.opensource.test\n"
	for _, part := range []struct {
		mode string
		keys []string
	}{{"segment", []string{"leaf.jdbc.url", url, "leaf.jdbc.username", "leaf", "leaf.jdbc.password", "geheim"}}, {"snowflake", []string{address, url, "leaf.snowflake.port", "8080"}}} {
		text += fmt.Sprintf("leaf.%s.enable=%t\n", part.mode, part.mode == mode)
		for i := 0; i < len(part.keys); i += 2 {
			if part.mode == mode {
				text += part.keys[i] + "=" + part.keys[i+1] + "\n"
			} else {
				text += "#" + part.keys[i] + "=\n"
			}
		}
		text += "\n"
	}
	return text
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
`, `# Read, and not shown: leaf.jdbc.password.
# Without effect here, where connections are hapax's own: leaf.jdbc.url?characterEncoding, leaf.jdbc.url?useUnicode.
compat:
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
`, `# Read, and not shown: leaf.segment.password.
compat:
  leaf:
    table: "mysql://leaf@10.0.0.1:3306/leaf?tls=true"
    tree: "zk://10.0.0.2"
    name: "demo"
    port: 2181
    http: 127.0.0.1:8088
    allow: []
`, "",
		},
		{"old line ends, and letters beyond 16 bits", "leaf.segment.enable=false\rleaf.name=\\uD83D\\uDE00\rleaf.snowflake.enable=true\rleaf.snowflake.address=a\r\nleaf.snowflake.port=1", `compat:
  leaf:
    tree: "zk://a"
    name: "\U0001f600"
    port: 1
    http: 127.0.0.1:8088
    allow: []
`, ""},
		{"settings of settings", "zk=a:1\nleaf.segment.enable=false\nleaf.name=demo\nleaf.snowflake.enable=true\nleaf.snowflake.address=${zk},${zk}\nleaf.snowflake.port=1\n", `# Put in the place of ${…}: zk.
compat:
  leaf:
    tree: "zk://a:1,a:1"
    name: "demo"
    port: 1
    http: 127.0.0.1:8088
    allow: []
`, ""},
		{"a password from elsewhere", "leaf.snowflake.enable=false\nleaf.segment.enable=true\nleaf.jdbc.url=jdbc:mysql://h/d\nleaf.jdbc.username=u\nleaf.jdbc.password=${DB_PASSWORD:geheim}\n", `# Not in the file, but in what Java was started with, so that it is to be given beside the URL: leaf.jdbc.password.
compat:
  leaf:
    table: "mysql://u@h:3306/d"
    http: 127.0.0.1:8088
    allow: []
`, ""},
		// The server ships its file with both modes off; its core, with snowflakes on and without
		// the address that they need. Neither says what to go on with.
		{"the file as the server ships it", shipped("leaf.snowflake.zk.address", "", ""), "", "neither it nor leaf.snowflake.enable"},
		{"the file as the core ships it", strings.Replace(shipped("leaf.snowflake.address", "", ""), "snowflake.enable=false", "snowflake.enable=true", 1), "", "leaf.snowflake.zk.address"},
		{"the file of the server, with segments on", shipped("leaf.snowflake.zk.address", "segment", "jdbc:mysql://10.0.0.1:3306/leaf"), `# Read, and not shown: leaf.jdbc.password.
# Without effect, of the snowflake mode, which is off: leaf.name.
compat:
  leaf:
    table: "mysql://leaf@10.0.0.1:3306/leaf"
    # The password is not shown: put it into the variable HAPAX_LEAF_PASSWORD, or
    # into a file that password_file names.
    http: 127.0.0.1:8088
    allow: []
`, ""},
		{"the file of the server, with snowflakes on", shipped("leaf.snowflake.zk.address", "snowflake", "10.0.0.2:2181"), `compat:
  leaf:
    tree: "zk://10.0.0.2:2181"
    name: "com.sankuai.leaf.opensource.test"
    port: 8080
    http: 127.0.0.1:8088
    allow: []
`, ""},
		{"modes that the server's file does not name", "leaf.name=demo\nleaf.jdbc.url=jdbc:mysql://h/d\nleaf.jdbc.username=u\nleaf.snowflake.zk.address=a:1\nleaf.snowflake.port=1\n", `# On, as in Leaf's server where the file does not say: leaf.segment.enable, leaf.snowflake.enable.
compat:
  leaf:
    table: "mysql://u@h:3306/d"
    tree: "zk://a:1"
    name: "demo"
    port: 1
    http: 127.0.0.1:8088
    allow: []
`, ""},
		{"a mode that the starter's file does not name", "leaf.name=demo\nleaf.segment.enable=true\nleaf.segment.url=jdbc:mysql://h/d\nleaf.segment.username=u\nleaf.snowflake.address=a:1\nleaf.snowflake.port=1\n", `# Off, as in Leaf's starter where the file does not say: leaf.snowflake.enable.
# Without effect, of the snowflake mode, which is off: leaf.name, leaf.snowflake.address, leaf.snowflake.port.
compat:
  leaf:
    table: "mysql://u@h:3306/d"
    http: 127.0.0.1:8088
    allow: []
`, ""},
		{"a mode of the server that has no settings", "leaf.segment.enable=true\nleaf.jdbc.url=jdbc:mysql://h/d\n", "", "leaf.snowflake.enable"},
		{"a name from elsewhere", "leaf.segment.enable=false\nleaf.name=${NAME:geheim}\nleaf.snowflake.enable=true\nleaf.snowflake.address=a:1\nleaf.snowflake.port=1\n", "", "${NAME}"},
		{"neither mode", "leaf.name=x\nleaf.segment.enable=false\nleaf.snowflake.enable=false\n", "", "leaf.snowflake.enable"},
		{"nothing of Leaf's", "{\"a\": 1}", "", "leaf.segment.enable"},
		{"UTF-16", "\xff\xfel\x00e\x00a\x00f\x00", "", "UTF-8"},
		{"a setting that is not known", "leaf.snowflake.enable=false\nleaf.segment.enable=false\nleaf.more=1\n", "", "leaf.more"},
		{"two tables", "leaf.snowflake.enable=false\nleaf.segment.enable=true\nleaf.jdbc.url=jdbc:mysql://h/d\nleaf.segment.url=jdbc:mysql://h/e\n", "", "leaf.segment.url"},
		{"no url", "leaf.snowflake.enable=false\nleaf.segment.enable=true\n", "", "leaf.jdbc.url"},
		{"two hosts", "leaf.snowflake.enable=false\nleaf.segment.enable=true\nleaf.jdbc.url=jdbc:mysql://a:1,b:2/leaf\nleaf.jdbc.password=geheim\n", "", "leaf.jdbc.url"},
		{"no truth", "leaf.segment.enable=yes\n", "", "leaf.segment.enable"},
		{"no name", "leaf.segment.enable=false\nleaf.snowflake.enable=true\nleaf.snowflake.zk.address=a:1\nleaf.snowflake.port=1\n", "", "leaf.name"},
		{"bad port", "leaf.segment.enable=false\nleaf.name=x\nleaf.snowflake.enable=true\nleaf.snowflake.zk.address=a:1\nleaf.snowflake.port=0\n", "", "leaf.snowflake.port"},
		{"no address", "leaf.segment.enable=false\nleaf.name=x\nleaf.snowflake.enable=true\nleaf.snowflake.port=1\n", "", "leaf.snowflake.zk.address"},
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

// Nothing of the file is lost unseen, whichever modes are on.
func TestAccounting(t *testing.T) {
	const file = "\ufeff" + `leaf.name=com.sankuai.leaf.opensource.test
leaf.segment.enable=SEGMENT
leaf.jdbc.url=jdbc:mysql://10.0.0.3:3306/leaf?useUnicode=true&useSSL=false
leaf.jdbc.username=root
leaf.jdbc.password=geheim
leaf.snowflake.enable=SNOWFLAKE
leaf.snowflake.zk.address=10.0.0.8:2181
leaf.snowflake.port=8080
server.port=8081
`
	for _, segment := range []string{"true", "false"} {
		for _, snowflake := range []string{"true", "false"} {
			if segment == "false" && snowflake == "false" {
				continue // it is refused
			}
			text := strings.NewReplacer("SEGMENT", segment, "SNOWFLAKE", snowflake).Replace(file)
			out := accounting.Case{"leaf.properties": text}.Check(t, func(dir string) (string, error) {
				f, err := os.Open(filepath.Join(dir, "leaf.properties"))
				if err != nil {
					return "", err
				}
				defer f.Close()
				c, err := leaf.ReadProperties(f)
				return c.YAML(""), err
			}, "leaf.")
			if strings.Contains(out, "geheim") {
				t.Errorf("the password is printed: %s", out)
			}
		}
	}
}

func TestPasswordOfTable(t *testing.T) {
	c, err := leaf.ReadProperties(strings.NewReader("leaf.snowflake.enable=false\nleaf.segment.enable=true\nleaf.jdbc.url=jdbc:mysql://h/d\nleaf.jdbc.username=leaf\nleaf.jdbc.password=p\\u0040ss word\\=1\n"))
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
