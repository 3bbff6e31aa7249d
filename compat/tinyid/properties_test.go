package tinyid_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/tinyid"
	"github.com/hapax-id/hapax/internal/compat/accounting"
)

func TestReadProperties(t *testing.T) {
	c, err := tinyid.ReadProperties(strings.NewReader(`
server.port=9999
datasource.tinyid.names=primary,secondary
datasource.tinyid.primary.url=jdbc:mysql://127.0.0.1:3306/db1?autoReconnect=true&useUnicode=true
datasource.tinyid.primary.username=root
datasource.tinyid.primary.password=123456
datasource.tinyid.secondary.url=jdbc:mysql://localhost/db2
datasource.tinyid.secondary.username=root
datasource.tinyid.secondary.password=
`))
	const want = `# Read, and not shown: datasource.tinyid.primary.password, datasource.tinyid.secondary.password.
# Without effect here, where connections are hapax's own: datasource.tinyid.primary.url?autoReconnect, datasource.tinyid.primary.url?useUnicode.
compat:
  tinyid:
    databases:
      - "mysql://root@127.0.0.1:3306/db1"
      - "mysql://root@localhost:3306/db2"
    # The passwords are not shown: put them into a file that password_file names, a line
    # for each database; or one for all into the variable HAPAX_TINYID_PASSWORD.
    context_path: "/"
    http: 127.0.0.1:9999
`
	if err != nil || c.YAML("") != want || c.PasswordLines() != "123456\n\n" || c.URLs()[0] != "mysql://root:123456@127.0.0.1:3306/db1" {
		t.Errorf("got %s\nerror %v; want %s", c.YAML(""), err, want)
	}
	c, err = tinyid.ReadProperties(strings.NewReader("tinyid.server=localhost:9999/gongyi,localhost2:9999\ntinyid.token=0f673adf\n"))
	if err != nil || len(c.Servers) != 2 || c.Token != "0f673adf" || strings.Contains(fmt.Sprintf("%v %+v %#v", c, c, c), "0f673adf") {
		t.Errorf("of a client: %+v, error %v", c, err)
	}
	for _, text := range []string{
		"datasource.tinyid.names=a,a\ndatasource.tinyid.a.url=jdbc:mysql://h/d\n",
		"datasource.tinyid.names=a\ndatasource.tinyid.a.url=jdbc:mysql://h/d\nserver.context-path=ids\n",
		"datasource.tinyid.names=a\ndatasource.tinyid.a.url=jdbc:mysql://h/d\nserver.context-path=/a\nserver.contextPath=/b\n",
		"datasource.tinyid.names=a\ndatasource.tinyid.a.url=jdbc:mysql://h/d\nserver.servlet-path=/ids\n",
		"datasource.tinyid.names=a\ndatasource.tinyid.a.url=jdbc:mysql://h/d\ntinyid.more=1\n",
		"", "datasource.tinyid.names=a\n", "datasource.tinyid.names=a\ndatasource.tinyid.a.url=jdbc:oracle:thin\n",
	} {
		if _, err := tinyid.ReadProperties(strings.NewReader(text)); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%q: %v; want ErrInvalidArgument", text, err)
		}
	}
}

// A file without a port is one whose server listens where Spring has it.
func TestSpringsPort(t *testing.T) {
	c, err := tinyid.ReadProperties(strings.NewReader("datasource.tinyid.names=a\ndatasource.tinyid.a.url=jdbc:mysql://h/d\nserver.context-path=/tinyid\n"))
	if text := c.YAML(""); err != nil || !strings.Contains(text, "    http: 127.0.0.1:8080\n") || !strings.Contains(text, "# As in Spring Boot where the file does not say") {
		t.Errorf("%v\n%s", err, text)
	}
}

// The files that TinyID ships, for one environment with a database and for one with two, are
// carried over as they are; other context paths are served at theirs, and none at /id/.
func TestContextPath(t *testing.T) {
	shipped := func(path string, names ...string) string {
		text := "server.port=9999\n" + path + "\nbatch.size.max=100000\n\ndatasource.tinyid.names=" + strings.Join(names, ",") + "\n"
		for i, name := range names {
			at := "datasource.tinyid." + name + "."
			text += "\n" + at + "driver-class-name=com.mysql.jdbc.Driver\n" + at + fmt.Sprintf("url=jdbc:mysql://10.0.0.%d:3306/db%d?autoReconnect=true&useUnicode=true&characterEncoding=UTF-8\n", i+1, i+1) +
				at + "username=root\n" + at + "password=123456\n#" + at + "testOnBorrow=false\n#" + at + "maxActive=10\n"
		}
		return text
	}
	for name, c := range map[string]struct{ file, want string }{
		"shipped, one database":   {shipped("server.context-path=/tinyid", "primary"), ""},
		"shipped, two databases":  {shipped("server.context-path=/tinyid", "primary", "secondary"), ""},
		"with a slash at its end": {shipped("server.context-path=/tinyid/", "primary"), ""},
		"another":                 {shipped("server.context-path=/ids/v2", "primary"), `    context_path: "/ids/v2"`},
		"of a later Spring":       {shipped("server.servlet.context-path=/ids", "primary"), `    context_path: "/ids"`},
		"none":                    {shipped("", "primary"), `    context_path: "/"`},
		"empty":                   {shipped("server.context-path=", "primary"), `    context_path: "/"`},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := tinyid.ReadProperties(strings.NewReader(c.file))
			text := config.YAML("")
			if err != nil || c.want == "" && strings.Contains(text, "context_path") || !strings.Contains(text, c.want) {
				t.Errorf("error %v; want %q in\n%s", err, c.want, text)
			}
		})
	}
}

// Nothing of the file is lost unseen.
func TestAccounting(t *testing.T) {
	out := accounting.Case{"application.properties": "\ufeff" + `server.port=9998
batch.size.max=100000
datasource.tinyid.names=primary,secondary
datasource.tinyid.type=org.apache.tomcat.jdbc.pool.DataSource
datasource.tinyid.primary.driver-class-name=com.mysql.jdbc.Driver
datasource.tinyid.primary.url=jdbc:mysql://10.0.0.3:3306/db1?autoReconnect=true&useSSL=true
datasource.tinyid.primary.username=root
datasource.tinyid.primary.password=geheim
datasource.tinyid.primary.maxActive=10
datasource.tinyid.secondary.url=jdbc:mysql://10.0.0.4:3306/db2
datasource.tinyid.secondary.username=root
datasource.tinyid.secondary.password=geheim
datasource.tinyid.third.url=jdbc:mysql://10.0.0.5:3306/db3
logging.level.root=info
`}.Check(t, func(dir string) (string, error) {
		f, err := os.Open(filepath.Join(dir, "application.properties"))
		if err != nil {
			return "", err
		}
		defer f.Close()
		c, err := tinyid.ReadProperties(f)
		return c.YAML(""), err
	}, "tinyid.")
	for _, want := range []string{`"mysql://root@10.0.0.3:3306/db1?tls=true"`, "http: 127.0.0.1:9998", "datasource.tinyid.third.url", "batch.size.max"} {
		if !strings.Contains(out, want) || strings.Contains(out, "geheim") {
			t.Errorf("there is no %q in\n%s", want, out)
		}
	}
}
