package imports

import (
	"errors"
	"testing"

	"github.com/hapax-id/hapax"
)

const server = `<beans xmlns="http://www.springframework.org/schema/beans" xmlns:dubbo="http://d">
  <bean id="idService" class="com.robert.vesta.service.factory.IdServiceFactoryBean" init-method="init">
    <property name="providerType" value="PROPERTY"/>
    <property name="type" value="${vesta.type}"/>
    <property name="machineId" value="${vesta.machine}"/>
  </bean>
  <dubbo:registry address="zookeeper://10.0.0.8:2181"/>
  <dubbo:protocol name="dubbo" port="20881"/>
  <dubbo:service interface="com.robert.vesta.service.intf.IdService" ref="idService"/>
</beans>`

func TestRead(t *testing.T) {
	for _, tt := range []struct {
		name   string
		text   string
		given  map[string]string
		legacy bool
		want   string
	}{
		{"central server", server, map[string]string{"vesta.machine": "1021", "vesta.type": "0"}, false, `# While Vesta runs as well, give hapax machine IDs that no Vesta has.
compat:
  vesta:
    layout: vesta-max-peak
    machine: "fixed:1021"
    populator: mutex
    http: 127.0.0.1:8099
    dubbo: 127.0.0.1:20881  # the address that consumers reach
    interfaces: [com.robert.vesta.service.intf.IdService]
    registry: "zookeeper://10.0.0.8:2181"
`},
		{"addresses", "vesta.ips=10.0.0.1,10.0.0.2\nvesta.type=1\nvesta.atomic.impl.key=true\nvesta.version=1\nvesta.genMethod=2\n", nil, true, `# While Vesta runs as well, give hapax machine IDs that no Vesta has.
compat:
  vesta:
    layout: vesta-legacy-min-granularity
    machine: "address:10.0.0.1,10.0.0.2"
    version: 1
    gen_method: "2"  # fixes it; leave it out to have it set by how a number is asked for
    populator: atomic
    http: 127.0.0.1:8099
`},
		{"table", `<beans><bean class="x.IdServiceFactoryBean"><property name="providerType" value="DB"/><property name="dbUrl" value="10.0.0.3:3306"/><property name="dbName" value="vesta"/></bean></beans>`, nil, false, `# While Vesta runs as well, give hapax machine IDs that no Vesta has.
compat:
  vesta:
    layout: vesta-max-peak
    table: "mysql://10.0.0.3:3306/vesta"  # with USER:PASSWORD@ before the host
    populator: mutex
    http: 127.0.0.1:8099
`},
	} {
		c, err := Read([]byte(tt.text), tt.given, tt.legacy)
		if got := string(c.AppendYAML(nil)); got != tt.want || err != nil {
			t.Errorf("%s: %v, got\n%s\nwant\n%s", tt.name, err, got, tt.want)
		}
	}
	for name, text := range map[string]string{
		"nothing of Vesta's": "a=b", "machine": "vesta.machine=1024", "type": "vesta.type=2", "version": "vesta.version=2", "XML": "<a",
	} {
		if c, err := Read([]byte(text), nil, false); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}
