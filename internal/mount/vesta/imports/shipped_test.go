package imports

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/accounting"
)

// The files of Vesta's modules, each with every key and every bean that Vesta ships in it.
// Their properties are in files of their own, which the programs' own XML names.
func shippedFiles() accounting.Case {
	head := `<?xml version="1.0" encoding="UTF-8"?>
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:dubbo="http://code.alibabatech.com/schema/dubbo" xsi:schemaLocation="http://www.springframework.org/schema/beans http://www.springframework.org/schema/beans/spring-beans-2.5.xsd">
`
	xml := func(parts ...string) string { return head + strings.Join(parts, "\n") + "\n</beans>" }
	from := func(location string) string {
		return `<bean class="org.springframework.beans.factory.config.PropertyPlaceholderConfigurer"><property name="locations" value="` + location + `"/></bean>`
	}
	factory := func(properties ...string) string {
		b := `<bean class="com.robert.vesta.service.factory.IdServiceFactoryBean" id="idService" init-method="init">`
		for i := 0; i < len(properties); i += 2 {
			b += "\n\t" + `<property value="` + properties[i+1] + `" name="` + properties[i] + `"/>`
		}
		return b + "\n</bean>"
	}
	service := func(ref string, others ...string) string {
		return `<bean class="com.robert.vesta.service.impl.IdServiceImpl" id="idService" init-method="init"><property ref="` + ref + `" name="machineIdProvider"/></bean>` + strings.Join(others, "\n")
	}
	provider := func(id, class, init, property, value string) string {
		return `<bean class="com.robert.vesta.service.impl.provider.` + class + `" id="` + id + `"` + init + `><property ` + value + ` name="` + property + `"/></bean>`
	}
	const init = ` init-method="init"`
	pool := `<bean class="com.mchange.v2.c3p0.ComboPooledDataSource" name="baseDataSource">`
	for _, p := range []string{"driverClass=com.mysql.jdbc.Driver", "minPoolSize=5", "maxPoolSize=30", "idleConnectionTestPeriod=20", "maxIdleTime=25", "breakAfterAcquireFailure=false", "checkoutTimeout=3000", "acquireRetryAttempts=50", "acquireRetryDelay=1000"} {
		name, value, _ := strings.Cut(p, "=")
		pool += `<property name="` + name + `"><value>` + value + `</value></property>`
	}
	return accounting.Case{
		"server/spring/vesta-server-main.xml": xml(from("spring/vesta-server.properties"), `<import resource="classpath:spring/vesta-server.xml"/>`),
		"server/spring/vesta-server.xml": xml(
			`<dubbo:application name="vesta-service"/>`, `<dubbo:registry address="${vesta.service.register.center}"/>`,
			`<dubbo:protocol port="${vesta.service.port}" name="dubbo"/>`,
			factory("providerType", "PROPERTY", "genMethod", "${vesta.genMethod}", "machineId", "${vesta.machine}"),
			`<dubbo:service ref="idService" interface="com.robert.vesta.service.intf.IdService"/>`),
		"server/spring/vesta-server.properties": "vesta.service.register.center=multicast://224.5.6.7:1234\nvesta.service.port=20880\nvesta.machine=1023\nvesta.genMethod=1\n",

		"rest/spring/vesta-rest-main.xml":          xml(from("classpath:spring/vesta-rest.properties"), factory("providerType", "PROPERTY", "genMethod", "${vesta.genMethod}", "machineId", "${vesta.machine}")),
		"rest/spring/vesta-rest.properties":        "vesta.machine=1021\nvesta.genMethod=2",
		"netty/spring/vesta-rest-main.xml":         xml(from("classpath:spring/vesta-rest-netty.properties"), factory("providerType", "PROPERTY", "genMethod", "${vesta.genMethod}", "machineId", "${vesta.machine}")),
		"netty/spring/vesta-rest-netty.properties": "vesta.machine=1022\nvesta.genMethod=2",

		"embed/spring/vesta-service-sample.xml":                         xml(from("classpath:spring/vesta-service.properties"), `<import resource="classpath:spring/vesta-service-property-factory-bean.xml"/>`),
		"embed/spring/vesta-service.properties":                         "vesta.machine=1",
		"embed/spring/vesta-service-property-factory-bean.xml":          xml(factory("providerType", "PROPERTY", "machineId", "${vesta.machine}")),
		"service/spring/vesta-service-property.xml":                     xml(service("propertyMachineIdProvider", provider("propertyMachineIdProvider", "PropertyMachineIdProvider", "", "machineId", `value="${vesta.machine}"`))),
		"service/spring/vesta-service-ip-configurable.xml":              xml(service("ipConfigurableMachineIdProvider", provider("ipConfigurableMachineIdProvider", "IpConfigurableMachineIdProvider", init, "ips", `value="${vesta.ips}"`))),
		"service/spring/vesta-service-ip-configurable-factory-bean.xml": xml(factory("providerType", "IP_CONFIGURABLE", "ips", "${vesta.ips}")),
		"service/spring/vesta-service-db-factory-bean.xml":              xml(factory("providerType", "DB", "dbUrl", "${vesta.db.url}", "dbName", "${vesta.db.dbname}", "dbUser", "${vesta.db.user}", "dbPassword", "${vesta.db.password}")),
		"service/spring/vesta-service-db.xml": xml(service("dbMachineIdProvider", provider("dbMachineIdProvider", "DbMachineIdProvider", init, "jdbcTemplate", `ref="jdbcTemplate"`)),
			pool+"</bean>",
			`<bean id="datasource" parent="baseDataSource"><property name="jdbcUrl"><value>jdbc:mysql://${vesta.db.url}/${vesta.db.dbname}?useUnicode=true&amp;characterEncoding=UTF-8&amp;autoReconnect=true</value></property><property name="user"><value>${vesta.db.user}</value></property><property name="password"><value>${vesta.db.password}</value></property></bean>`,
			`<bean class="org.springframework.jdbc.core.JdbcTemplate" id="jdbcTemplate" lazy-init="false" abstract="false" dependency-check="default" autowire="default"><property name="dataSource"><ref bean="datasource"/></property></bean>`),
		"service/spring/vesta-service.properties": "vesta.machine=1\n\nvesta.ips=192.168.0.104,192.168.1.104\n\nvesta.db.url=localhost:3306\nvesta.db.dbname=billing_account\nvesta.db.user=billing_account\nvesta.db.password=billing_account",

		"client/spring/vesta-client.xml":        xml(`<dubbo:application name="vesta-service"/>`, `<dubbo:registry address="${vesta.service.register.center}"/>`, `<dubbo:reference interface="com.robert.vesta.service.intf.IdService" id="idService"/>`),
		"client/spring/vesta-client.properties": "vesta.service.register.center=multicast://224.5.6.7:1234\n",
	}
}

// Each file that Vesta ships is imported as it is, with everything it says, or it is
// refused for its own fault.
func TestShippedFiles(t *testing.T) {
	dir := shippedFiles().Write(t)
	const values = "service/spring/vesta-service.properties"
	for name, c := range map[string]struct {
		file, properties string
		noRegistry       bool
		block            string // below compat.vesta; empty: it is refused
		notes            []string
		wrong            string
	}{
		"the central server": {
			file: "server/spring/vesta-server-main.xml", noRegistry: true,
			block: `layout: vesta-max-peak
machine: "fixed:1023"
gen_method: "1"  # fixes it; leave it out to have it set by how a number is asked for
populator: mutex
http: 127.0.0.1:8099
dubbo: 127.0.0.1:20880  # the address that consumers reach
interfaces: ["com.robert.vesta.service.intf.IdService"]
`,
			notes: []string{
				"Where ${…} come from, unless --properties is given: spring/vesta-server.properties.",
				"Read as well: classpath:spring/vesta-server.xml.",
				"Left out, so that consumers are to be told where the provider is: <dubbo:registry address> multicast://224.5.6.7:1234.",
				"Chooses among the machine ID's settings: bean idService (com.robert.vesta.service.factory.IdServiceFactoryBean): providerType PROPERTY.",
			},
		},
		"the central server, with its registry": {file: "server/spring/vesta-server-main.xml", wrong: "--no-registry"},
		"REST":                                  {file: "rest/spring/vesta-rest-main.xml", block: rest("1021")},
		"REST by Netty":                         {file: "netty/spring/vesta-rest-main.xml", block: rest("1022")},
		"embedded":                              {file: "embed/spring/vesta-service-sample.xml", block: embedded(`machine: "fixed:1"`)},
		"a property":                            {file: "service/spring/vesta-service-property.xml", properties: values, block: embedded(`machine: "fixed:1"`), notes: []string{"Not referred to by what is read, without effect: vesta.db.dbname, vesta.db.password, vesta.db.url, vesta.db.user, vesta.ips."}},
		"a property, by the factory":            {file: "embed/spring/vesta-service-property-factory-bean.xml", properties: "embed/spring/vesta-service.properties", block: embedded(`machine: "fixed:1"`)},
		"addresses":                             {file: "service/spring/vesta-service-ip-configurable.xml", properties: values, block: embedded(`machine: "address:192.168.0.104,192.168.1.104"`)},
		"addresses, by the factory":             {file: "service/spring/vesta-service-ip-configurable-factory-bean.xml", properties: values, block: embedded(`machine: "address:192.168.0.104,192.168.1.104"`)},
		"a table":                               {file: "service/spring/vesta-service-db.xml", properties: values, block: embedded(table), notes: []string{"maxPoolSize", "idleConnectionTestPeriod", "Read, and not shown"}},
		"a table, by the factory":               {file: "service/spring/vesta-service-db-factory-bean.xml", properties: values, block: embedded(table), notes: []string{"Read, and not shown"}},
		"the embedded files without values":     {file: "service/spring/vesta-service-property.xml", wrong: "${vesta.machine} has no value in the files, and a default counts only if Java was started without one: give a file of properties with it as --properties"},
		"a client":                              {file: "client/spring/vesta-client.xml", properties: "client/spring/vesta-client.properties", wrong: "import the server's file"},
		"the server's properties alone": {
			file: "server/spring/vesta-server.properties", noRegistry: true,
			block: "layout: vesta-max-peak\nmachine: \"fixed:1023\"\ngen_method: \"1\"  # fixes it; leave it out to have it set by how a number is asked for\npopulator: mutex\nhttp: 127.0.0.1:8099\ndubbo: 127.0.0.1:20880  # the address that consumers reach\n",
			notes: []string{"vesta.service.register.center multicast://224.5.6.7:1234"},
		},
		"the same, with its registry":       {file: "server/spring/vesta-server.properties", wrong: "vesta.service.register.center: it is \"multicast://224.5.6.7:1234\""},
		"properties of REST alone":          {file: "rest/spring/vesta-rest.properties", block: rest("1021")},
		"properties of all ways, of no one": {file: values, wrong: "vesta.machine says, too, where the machine ID comes from"},
	} {
		t.Run(name, func(t *testing.T) {
			src := Source{Open: openFile, Path: filepath.Join(dir, filepath.FromSlash(c.file)), NoRegistry: c.noRegistry}
			if c.properties != "" {
				src.Properties = filepath.Join(dir, filepath.FromSlash(c.properties))
			}
			got, err := Read(src)
			if c.wrong != "" {
				if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("%v; want it to say %q", err, c.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			notes, block, _ := strings.Cut(string(got.AppendYAML(nil)), "compat:\n  vesta:\n")
			if want := "    " + strings.ReplaceAll(strings.TrimSuffix(c.block, "\n"), "\n", "\n    ") + "\n"; block != want {
				t.Errorf("printed is\n%s\nwant\n%s", block, want)
			}
			for _, want := range c.notes {
				if !strings.Contains(notes, want) {
					t.Errorf("no note says %q:\n%s", want, notes)
				}
			}
		})
	}
}

const table = "table: \"mysql://billing_account@localhost:3306/billing_account\"\n# The password is not shown: write it into the URL, after the user and a colon."

func embedded(machine string) string {
	return "layout: vesta-max-peak\n" + machine + "\npopulator: mutex\nhttp: 127.0.0.1:8099\n"
}

func rest(machine string) string {
	return "layout: vesta-max-peak\nmachine: \"fixed:" + machine + "\"\ngen_method: \"2\"  # fixes it; leave it out to have it set by how a number is asked for\npopulator: mutex\nhttp: 127.0.0.1:8099\n"
}

// A class of somebody's own is not taken for the one of Vesta's that has its simple name.
func TestOthersClasses(t *testing.T) {
	shipped := shippedFiles()
	for name, c := range map[string]struct{ text, class string }{
		"a factory":    {shipped["rest/spring/vesta-rest-main.xml"], "service.factory.IdServiceFactoryBean"},
		"a service":    {shipped["service/spring/vesta-service-db.xml"], "service.impl.IdServiceImpl"},
		"a provider":   {shipped["service/spring/vesta-service-property.xml"], "service.impl.provider.PropertyMachineIdProvider"},
		"of addresses": {shipped["service/spring/vesta-service-ip-configurable.xml"], "service.impl.provider.IpConfigurableMachineIdProvider"},
		"of a table":   {shipped["service/spring/vesta-service-db.xml"], "service.impl.provider.DbMachineIdProvider"},
		"a populator":  {service(provider7+`<property name="idPopulator"><bean class="com.robert.vesta.service.impl.populater.AtomicIdPopulator"/></property>`, "")["v.xml"], "service.impl.populater.AtomicIdPopulator"},
		"bits":         {service(provider7+`<property name="idMeta"><bean class="com.robert.vesta.service.impl.bean.IdMeta" p:machineBits="10" p:seqBits="20" p:timeBits="30" p:genMethodBits="2" p:typeBits="1" p:versionBits="1"/></property>`, "")["v.xml"], "service.impl.bean.IdMeta"},
		"a timer":      {service(provider7+`<property name="timer"><bean class="com.robert.vesta.service.impl.timer.SimpleTimer" p:epoch="1420041600000"/></property>`, "")["v.xml"], "service.impl.timer.SimpleTimer"},
	} {
		read := func(text string) error {
			dir := accounting.Case{"f.xml": text, "p": shipped["service/spring/vesta-service.properties"] + "\nvesta.genMethod=1\n"}.Write(t)
			_, err := Read(Source{Open: openFile, Path: filepath.Join(dir, "f.xml"), Properties: filepath.Join(dir, "p")})
			return err
		}
		own := "com.acme." + c.class[strings.LastIndexByte(c.class, '.')+1:]
		if err := read(c.text); err != nil {
			t.Errorf("%s: Vesta's own is refused: %v", name, err)
		}
		if err := read(strings.ReplaceAll(c.text, "com.robert.vesta."+c.class, own)); !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), own+"): its class is not Vesta's own") && !strings.Contains(err.Error(), "bean of class "+own+": its class is not Vesta's own") {
			t.Errorf("%s: %v; want it to name %s", name, err, own)
		}
	}
}
