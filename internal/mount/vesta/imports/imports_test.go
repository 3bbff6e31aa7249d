package imports

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/accounting"
)

func openFile(path string) (io.ReadCloser, error) { return os.Open(path) }

// reading returns what reads a file in a directory, with properties if they are named.
func reading(file, properties string, legacy bool) accounting.Read {
	return func(dir string) (string, error) {
		src := Source{Open: openFile, Path: filepath.Join(dir, file), Legacy: legacy}
		if properties != "" {
			src.Properties = filepath.Join(dir, properties)
		}
		c, err := Read(src)
		if err != nil {
			return "", err
		}
		return string(c.AppendYAML(nil)), nil
	}
}

// The shapes of Vesta's own files.
var central = accounting.Case{
	"spring/vesta-server-main.xml": "\ufeff" + `<?xml version="1.0" encoding="UTF-8"?>
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://x" xsi:schemaLocation="http://x http://y">
	<bean class="org.springframework.beans.factory.config.PropertyPlaceholderConfigurer">
		<property name="locations"><list><value>classpath:vesta-server.properties</value></list></property>
	</bean>
	<import resource="classpath:spring/vesta-service.xml"/>
	<import resource="vesta-server.xml"/>
</beans>`,
	"spring/vesta-service.xml": `<beans>
	<description>the service</description>
	<bean id="idService" class="com.robert.vesta.service.factory.IdServiceFactoryBean" init-method="init">
		<property name="providerType" value="PROPERTY"/>
		<property name="type" value="${vesta.type}"/>
		<property name="genMethod" value="1"/>
		<property name="machineId" value="${vesta.machine}"/>
	</bean>
</beans>`,
	"spring/vesta-server.xml": `<beans xmlns:dubbo="http://d">
	<dubbo:application name="vesta-server" owner="robert"/>
	<dubbo:registry address="zookeeper://10.0.0.8:2181" check="false"/>
	<dubbo:protocol name="dubbo" port="20881" threads="100"/>
	<dubbo:service interface="com.robert.vesta.service.intf.IdService" ref="idService" group="ids" version="1.0" timeout="3000"/>
</beans>`,
	"vesta-server.properties": "vesta.machine=1021\nvesta.type=0\nvesta.unused=5\nvesta.ips=10.0.0.1\n",
}

// Nothing in the files is lost unseen. A property that the XML does not refer to has no
// effect, as with Vesta.
func TestCentralServer(t *testing.T) {
	for name, properties := range map[string]string{"the properties that it names": "", "properties that are given": "vesta-server.properties"} {
		t.Run(name, func(t *testing.T) {
			out := central.Check(t, reading("spring/vesta-server-main.xml", properties, false), "vesta.")
			const block = `compat:
  vesta:
    layout: vesta-max-peak
    machine: "fixed:1021"
    gen_method: "1"  # fixes it; leave it out to have it set by how a number is asked for
    populator: mutex
    http: 127.0.0.1:8099
    dubbo: 127.0.0.1:20881  # the address that consumers reach
    interfaces: ["com.robert.vesta.service.intf.IdService"]
    registry: "zookeeper://10.0.0.8:2181"
    group: "ids"
    service_version: "1.0"
`
			if !strings.HasSuffix(out, block) {
				t.Errorf("printed is\n%s\nwant at its end\n%s", out, block)
			}
			if !strings.Contains(out, "Not referred to by what is read, without effect: vesta.ips, vesta.unused.") {
				t.Errorf("printed is\n%s", out)
			}
		})
	}
}

// service is an IdServiceImpl with its children, and other beans.
func service(inside, others string) accounting.Case {
	return accounting.Case{"v.xml": `<beans xmlns:p="http://p" xmlns:c="http://c"><bean id="idService" class="com.robert.vesta.service.impl.IdServiceImpl" init-method="init">` + inside + `</bean>` + others + `</beans>`}
}

const provider7 = `<property name="machineIdProvider"><bean class="com.robert.vesta.service.impl.provider.PropertyMachineIdProvider" p:machineId="7"/></property>`

func TestServices(t *testing.T) {
	const meta = `<bean id="meta" class="com.robert.vesta.service.impl.bean.IdMeta">`
	for name, c := range map[string]struct {
		files  accounting.Case
		legacy bool
		want   []string
	}{
		"a type by its name": {
			service(provider7+`<constructor-arg value="milliseconds"/>`, ""), false,
			[]string{"layout: vesta-min-granularity\n", `machine: "fixed:7"`, "populator: mutex"},
		},
		"an IdType, for the older generation": {
			service(provider7+`<constructor-arg index="0"><ref bean="type"/></constructor-arg>`,
				`<bean id="type" class="org.springframework.beans.factory.config.FieldRetrievingFactoryBean"><property name="staticField" value="com.robert.vesta.service.impl.bean.IdType.MIN_GRANULARITY"/></bean>`), true,
			[]string{"layout: vesta-legacy-min-granularity\n"},
		},
		"other bits": {
			service(provider7+`<property name="idMeta" ref="meta"/>`,
				meta+`<constructor-arg value="16"/><constructor-arg value="14"/><constructor-arg value="30"/><constructor-arg value="2"/><constructor-arg value="1"/><constructor-arg value="1"/></bean>`), false,
			[]string{`layout: "version:1,type:1,genMethod:2,time:30,sequence:14,machine:16,unit=1s,epoch=2014-12-31T16:00:00Z"`},
		},
		"other bits, by properties": {
			service(provider7+`<property name="idMeta" ref="meta"/><property name="type" value="1"/>`,
				meta+`<property name="machineBits" value="9"/><property name="seqBits" value="11"/><property name="timeBits" value="40"/><property name="genMethodBits" value="2"/><property name="typeBits" value="1"/><property name="versionBits" value="1"/></bean>`), false,
			[]string{`layout: "version:1,type:1,genMethod:2,time:40,sequence:11,machine:9,unit=1ms,epoch=2014-12-31T16:00:00Z"`},
		},
		"the usual bits": {
			service(provider7+`<property name="idMeta" ref="meta"/>`,
				meta+`<constructor-arg value="10"/><constructor-arg value="20"/><constructor-arg value="30"/><constructor-arg value="2"/><constructor-arg value="1"/><constructor-arg value="1"/></bean>`), false,
			[]string{"layout: vesta-max-peak\n"},
		},
		"another epoch": {
			service(provider7+`<property name="timer"><bean class="com.robert.vesta.service.impl.timer.SimpleTimer"><property name="epoch" value="1514736000000"/></bean></property>`, ""), false,
			[]string{`layout: "version:1,type:1,genMethod:2,time:30,sequence:20,machine:10,unit=1s,epoch=2017-12-31T16:00:00Z"`},
		},
		"a populator": {
			service(provider7+`<property name="idPopulator" ref="p"/>`, `<bean id="p" class="com.robert.vesta.service.impl.populater.AtomicIdPopulator"/>`), false,
			[]string{"populator: atomic"},
		},
		"a list of machine IDs": {
			service(`<property name="machineIdProvider" ref="m"/>`,
				`<bean id="m" class="com.robert.vesta.PropertyMachineIdsProvider"><property name="machineIds"><array><value>1</value><value>2</value><value>3</value><value>4</value><value>5</value></array></property></bean>`), false,
			[]string{`machine: "list:1,2,3,4,5"`},
		},
		"a list with commas": {
			service(`<property name="machineIdProvider" ref="m"/>`, `<bean id="m" class="com.robert.vesta.PropertyMachineIdsProvider"><property name="machineIds" value="1, 2,3"/></bean>`), false,
			[]string{`machine: "list:1,2,3"`},
		},
		"addresses": {
			service(`<property name="machineIdProvider" ref="m"/>`, `<bean id="m" class="com.robert.vesta.IpConfigurableMachineIdProvider"><property name="ips" value="10.0.0.1,10.0.0.2"/></bean>`), false,
			[]string{`machine: "address:10.0.0.1,10.0.0.2"`},
		},
		"a table": {
			service(`<property name="machineIdProvider" ref="m"/>`, `<bean id="m" class="com.robert.vesta.DbMachineIdProvider"><property name="jdbcTemplate" ref="t"/></bean>
			<bean id="t" class="org.springframework.jdbc.core.JdbcTemplate"><property name="dataSource" ref="ds"/></bean>
			<bean id="ds" class="com.mchange.v2.c3p0.ComboPooledDataSource" destroy-method="close"><property name="jdbcUrl" value="jdbc:mysql://10.0.0.3/vesta?useSSL=true"/><property name="user" value="root"/><property name="password" value="geheim"/><property name="maxPoolSize" value="5"/></bean>`), false,
			[]string{`table: "mysql://root@10.0.0.3:3306/vesta?tls=true"`, "maxPoolSize", "The password is not shown"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := c.files.Check(t, reading("v.xml", "", c.legacy), "vesta.")
			for _, want := range c.want {
				if !strings.Contains(out, want) || strings.Contains(out, "geheim") {
					t.Errorf("there is no %q in\n%s", want, out)
				}
			}
		})
	}
}

func TestOfProperties(t *testing.T) {
	out := accounting.Case{"v": "vesta.ips=10.0.0.1,10.0.0.2\nvesta.type=1\nvesta.atomic.impl.key=true\nvesta.version=1\nvesta.genMethod=2\nlog.level=5\n"}.Check(t, reading("v", "", true), "vesta.")
	for _, want := range []string{"layout: vesta-legacy-min-granularity\n", `machine: "address:10.0.0.1,10.0.0.2"`, "version: 1\n", `gen_method: "2"`, "populator: atomic\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in\n%s", want, out)
		}
	}
	out = accounting.Case{"v.xml": `<beans><bean class="com.robert.vesta.IdServiceFactoryBean"><property name="providerType" value="DB"/><property name="dbUrl" value="10.0.0.3:3306"/><property name="dbName" value="vesta"/><property name="dbUser" value="root"/><property name="dbPassword" value="geheim"/><property name="ips" value="10.0.0.1"/></bean></beans>`}.Check(t, reading("v.xml", "", false), "vesta.")
	if !strings.Contains(out, `table: "mysql://root@10.0.0.3:3306/vesta"`) || !strings.Contains(out, "Without effect with this provider") || strings.Contains(out, "geheim") {
		t.Errorf("printed is\n%s", out)
	}
}

// In a file of another character set, letters beyond ASCII may stand in comments.
func TestCharacterSets(t *testing.T) {
	const file = "<?xml version=\"1.0\" encoding='GB2312'?><beans xmlns:p='http://p'><!-- \xbb\xfa\xc6\xf7 --><bean class='com.robert.vesta.IdServiceFactoryBean' p:machineId='7'/></beans>"
	if out, err := reading("f", "", false)(accounting.Case{"f": file}.Write(t)); err != nil || !strings.Contains(out, `machine: "fixed:7"`) {
		t.Errorf("%s, %v", out, err)
	}
}

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"nothing of Vesta's":   {"a=b", "no setting of Vesta's"},
		"machine":              {"vesta.machine=x", "vesta.machine"},
		"no machine":           {"vesta.type=1", "machine ID"},
		"type":                 {"vesta.machine=1\nvesta.type=2", "vesta.type"},
		"version":              {"vesta.machine=1\nvesta.version=2", "vesta.version"},
		"a setting of its own": {"vesta.machine=1\nvesta.more=2", "vesta.more"},
		"two providers":        {"vesta.machine=1\nvesta.ips=10.0.0.1", "vesta.ips"},
		"XML":                  {"<a", "XML"},
		"an import":            {`<beans><import resource="classpath:none.xml"/><bean class="com.robert.vesta.IdServiceFactoryBean" p:machineId="1"/></beans>`, "none.xml"},
		"a default":            {`<beans><bean class="com.robert.vesta.IdServiceFactoryBean" p:machineId="${vesta.machine:7}"/></beans>`, "${vesta.machine} has no value"},
		"an override":          {`<beans><bean class="x.PropertyOverrideConfigurer" p:location="x"/><bean class="com.robert.vesta.IdServiceFactoryBean" p:machineId="1"/></beans>`, "PropertyOverrideConfigurer"},
		"a character set":      {`<?xml version="1.0" encoding="UTF-32"?><beans/>`, "UTF-8"},
		"a letter of another":  {"<?xml version=\"1.0\" encoding=\"GBK\"?><beans><bean class='com.robert.vesta.IdServiceFactoryBean' p:machineId='\xb0\xa1'/></beans>", "save the file as UTF-8"},
		"a value":              {`<beans><bean class="com.robert.vesta.IdServiceFactoryBean" p:machineId="${vesta.machine}"/></beans>`, "--properties"},
		"a provider":           {service(`<property name="machineIdProvider"><bean class="com.x.Mine"/></property>`, "")["v.xml"], "com.x.Mine"},
		"a populator":          {service(provider7+`<property name="idPopulator"><bean class="com.x.Mine"/></property>`, "")["v.xml"], "com.x.Mine"},
		"a timer":              {service(provider7+`<property name="timer"><bean class="com.x.Mine"/></property>`, "")["v.xml"], "com.x.Mine"},
		"bits":                 {service(provider7+`<property name="idMeta"><bean class="com.robert.vesta.IdMeta" p:machineBits="16"/></property>`, "")["v.xml"], "seqBits is not given"},
		"a registry":           {`<beans><bean class="com.robert.vesta.IdServiceFactoryBean" p:machineId="1"/><dubbo:registry address="multicast://224.5.6.7:1234"/></beans>`, "--no-registry"},
		"two services":         {`<beans><bean id="a" class="com.robert.vesta.IdServiceFactoryBean" p:machineId="1"/><bean id="b" class="com.robert.vesta.IdServiceImpl"/></beans>`, "bean a (com.robert.vesta.IdServiceFactoryBean), bean b (com.robert.vesta.IdServiceImpl); choose one with --bean ID"},
		"a protocol":           {`<beans><bean class="com.robert.vesta.IdServiceFactoryBean" p:machineId="1"/><dubbo:protocol name="rmi"/></beans>`, "dubbo"},
	} {
		dir := accounting.Case{"f": c.text}.Write(t)
		if out, err := reading("f", "", false)(dir); !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q\n%s", name, err, c.want, out)
		}
	}
}

// The server's file as Vesta ships it, with a registry by multicast, is carried over once
// that is left out; of two services the one that is chosen is.
func TestShippedServer(t *testing.T) {
	dir := accounting.Case{
		"vesta-server.properties": "vesta.machine=1021\nvesta.genMethod=0\nvesta.type=0\nvesta.version=0\n",
		"vesta-server-main.xml": `<?xml version="1.0" encoding="UTF-8"?>
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:dubbo="http://code.alibabatech.com/schema/dubbo">
	<dubbo:application name="vesta-server"/>
	<dubbo:registry address="multicast://224.5.6.7:1234"/>
	<dubbo:protocol name="dubbo" port="20880"/>
	<dubbo:service interface="com.robert.vesta.service.intf.IdService" ref="idService"/>
	<bean id="idService" class="com.robert.vesta.service.factory.IdServiceFactoryBean" init-method="init">
		<property name="providerType" value="PROPERTY"/>
		<property name="machineId" value="${vesta.machine}"/>
		<property name="genMethod" value="${vesta.genMethod}"/>
		<property name="type" value="${vesta.type}"/>
		<property name="version" value="${vesta.version}"/>
	</bean>
</beans>`,
		"two.xml": `<beans><bean id="a" class="com.robert.vesta.service.factory.IdServiceFactoryBean" p:machineId="7"/><bean id="b" class="com.robert.vesta.service.factory.IdServiceFactoryBean" p:machineId="9"/></beans>`,
	}.Write(t)
	src := Source{Open: openFile, Path: filepath.Join(dir, "vesta-server-main.xml"), Properties: filepath.Join(dir, "vesta-server.properties"), NoRegistry: true}
	c, err := Read(src)
	if err != nil {
		t.Fatal(err)
	}
	text := string(c.AppendYAML(nil))
	for _, want := range []string{"# Left out, so that consumers are to be told where the provider is: <dubbo:registry address> multicast://224.5.6.7:1234.\n", `machine: "fixed:1021"`, "dubbo: 127.0.0.1:20880", "layout: vesta-max-peak", "with an embedded store each, two that have the same machine ID issue the same numbers"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	for id, machine := range map[string]string{"a": "fixed:7", "b": "fixed:9"} {
		if c, err := Read(Source{Open: openFile, Path: filepath.Join(dir, "two.xml"), Bean: id}); err != nil || c.Machine != machine {
			t.Errorf("bean %s: machine %s, %v; want %s", id, c.Machine, err, machine)
		}
	}
}

// Of two services that are exported with Dubbo, each has its own export; one that is not
// exported has no Dubbo.
func TestExportsOfTwoServices(t *testing.T) {
	bean := func(id, machine string) string {
		return `<bean id="` + id + `" class="com.robert.vesta.service.factory.IdServiceFactoryBean" p:machineId="` + machine + `"/>`
	}
	dir := accounting.Case{"two.xml": `<beans>` + bean("a", "7") + bean("b", "9") + bean("local", "11") + `
	<dubbo:protocol name="dubbo" port="20999"/>
	<dubbo:registry address="zookeeper://10.0.0.1:2181"/>
	<dubbo:service interface="com.robert.vesta.service.intf.IdService" ref="a" group="of-a"/>
	<dubbo:service interface="com.robert.vesta.service.intf.IdService" ref="b" group="of-b"/>
</beans>`}.Write(t)
	for id, want := range map[string][]string{
		"a": {`machine: "fixed:7"`, "dubbo: 127.0.0.1:20999", "of-a", "zookeeper://10.0.0.1:2181"}, "b": {`machine: "fixed:9"`, "dubbo: 127.0.0.1:20999", "of-b"}, "local": {`machine: "fixed:11"`},
	} {
		c, err := Read(Source{Open: openFile, Path: filepath.Join(dir, "two.xml"), Bean: id})
		if err != nil {
			t.Fatal(id, err)
		}
		notes, block, _ := strings.Cut(string(c.AppendYAML(nil)), "compat:")
		for _, part := range want {
			if !strings.Contains(block, part) {
				t.Errorf("%s lacks %q:\n%s", id, part, block)
			}
		}
		for _, other := range []string{"of-a", "of-b"} {
			if strings.Contains(block, other) == (other != "of-"+id) {
				t.Errorf("%s has the export %s:\n%s", id, other, block)
			}
		}
		if !strings.Contains(notes, "<dubbo:service interface ref group>") {
			t.Errorf("%s does not say that another export is not read:\n%s", id, notes)
		}
		if id == "local" && (strings.Contains(block, "dubbo:") || strings.Contains(block, "registry")) {
			t.Errorf("%s is not exported, and has Dubbo:\n%s", id, block)
		}
	}
}
