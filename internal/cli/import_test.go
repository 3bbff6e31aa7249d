package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/server"
)

func TestImport(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	run := func(args ...string) (code int, out, errs string) {
		var stdout, stderr bytes.Buffer
		code = Main(t.Context(), append([]string{"import"}, args...), Streams{In: strings.NewReader("uid.timeBits=30\nuid.workerBits=22\nuid.seqBits=11\nuid.epochStr=2021-01-20\n"), Out: &stdout, Err: &stderr})
		return code, stdout.String(), stderr.String()
	}
	properties := file("p.properties", "vesta.machine=1021\ntime=29\nworker=21\n")
	vesta := file("vesta.xml", `<beans><bean class="com.robert.vesta.service.factory.IdServiceFactoryBean"><property name="machineId" value="${vesta.machine}"/></bean></beans>`)
	sample := file("sample.xml", `<beans><bean class="com.baidu.fsg.uid.impl.CachedUidGenerator"><property name="timeBits" value="${time}"/><property name="workerBits" value="${worker}"/><property name="epochStr" value="2016-09-20"/></bean></beans>`)
	bits := file("bits.xml", `<beans><bean class="com.robert.vesta.service.impl.IdServiceImpl"><property name="machineIdProvider"><bean class="com.robert.vesta.PropertyMachineIdsProvider"><property name="machineIds" value="1,2,3,4,5"/></bean></property>
		<property name="idMeta"><bean class="com.robert.vesta.IdMeta"><constructor-arg value="16"/><constructor-arg value="14"/><constructor-arg value="30"/><constructor-arg value="2"/><constructor-arg value="1"/><constructor-arg value="1"/></bean></property></bean></beans>`)
	over := file("over.xml", `<beans><bean class="com.baidu.fsg.uid.impl.DefaultUidGenerator"/></beans>`)

	// What is printed is a configuration that a server takes.
	for name, args := range map[string][]string{
		"Vesta":         {"vesta", vesta, "--properties", properties},
		"other bits":    {"vesta", bits},
		"legacy Vesta":  {"vesta", vesta, "--properties", properties, "--legacy"},
		"uid-generator": {"uid-generator", sample, "--properties", properties, "--table", "mysql://u@h/d"},
		"in UTC":        {"uid-generator", sample, "--properties", properties, "--zone", "UTC", "--table", "mysql://u@h/d"},
		"successor":     {"uid-generator", over, "--min", "6755399441055744", "--max", "9223372036854775807"},
		"30/22/11":      {"uid-generator", "-", "--min", "1", "--max", "4611686018427387904"},
	} {
		code, out, errs := run(args...)
		if code != exitOK {
			t.Errorf("%s: %d %s", name, code, errs)
			continue
		}
		take := func(out string) error {
			c, err := server.Load(server.Sources{File: file("hapax.yaml", out)})
			if err == nil {
				err = server.Check(t.Context(), c)
			}
			return err
		}
		if given := strings.Replace(out, `"the URL of the store that all servers share"`, "redis://h/0", 1); given != out {
			if err := take(out); !errors.Is(err, hapax.ErrInvalidArgument) {
				t.Errorf("%s: a server takes a configuration that names no store: %v", name, err)
			}
			out = given
		}
		if err := take(out); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}

	for _, tt := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"time is over", []string{"uid-generator", over}, exitFailure, "2024-11-20T13:24:16Z"},
		{"widely copied", []string{"uid-generator", "-"}, exitUsage, "issues numbers that the default one of 28, 22 and 13 bits may have issued"},
		{"no room", []string{"uid-generator", over, "--min", "1", "--max", "9223372036854775807"}, exitUsage, "the width of the numbers"},
		{"no WORKER_NODE", []string{"uid-generator", sample, "--properties", properties}, exitUsage, "--table"},
		{"half a span", []string{"uid-generator", over, "--min", "1"}, exitUsage, "belong together"},
		{"half a column", []string{"uid-generator", over, "--column", "t.id"}, exitUsage, "belong together"},
		{"column", []string{"uid-generator", over, "--database", "mysql://h/d", "--column", "t"}, exitUsage, "TABLE.COLUMN"},
		{"zone", []string{"uid-generator", over, "--zone", "Nowhere"}, exitUsage, "--zone"},
		{"another system's file", []string{"vesta", over}, exitUsage, "no setting of Vesta's"},
		{"properties that are none", []string{"vesta", vesta, "--properties", vesta}, exitUsage, "no properties file"},
		{"no file", []string{"vesta", filepath.Join(dir, "none")}, exitUsage, "no such file"},
	} {
		if code, out, errs := run(tt.args...); code != tt.code || !strings.Contains(errs, tt.want) || out != "" {
			t.Errorf("%s: %d, %q, %q; want %d, %q", tt.name, code, out, errs, tt.code, tt.want)
		}
	}
}
