package springxml

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

const sample = `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE beans PUBLIC "-//SPRING//DTD BEAN//EN" "http://www.springframework.org/dtd/spring-beans.dtd">
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:dubbo="http://d" xmlns:p="http://p">
  <!-- a comment -->
  <dubbo:registry address="zookeeper://10.0.0.8:2181"/>
  <bean id="gen" class="com.x.Gen" p:port="${port:80}" p:assigner-ref="a">
    <property name="timeBits" value="29"/>
    <property name="epochStr"><value> ${epoch} </value></property>
    <property name="other" ref="o"/>
    <property name="third"><ref bean="t"/></property>
    <property name="handler"><bean class="com.x.Handler"><property name="deep" value="1"/></bean></property>
  </bean>
</beans>`

func TestXML(t *testing.T) {
	f, err := Parse([]byte(sample), map[string]string{"epoch": "${day}", "day": "2016-09-20"})
	if err != nil {
		t.Fatal(err)
	}
	want := []Bean{
		{"registry", "", "", map[string]string{"address": "zookeeper://10.0.0.8:2181"}},
		{"bean", "gen", "com.x.Gen", map[string]string{"port": "80", "assigner": "a", "timeBits": "29", "epochStr": "2016-09-20", "other": "o", "third": "t", "handler": "com.x.Handler"}},
		{"bean", "", "com.x.Handler", map[string]string{"deep": "1"}},
	}
	if len(f.Beans) != len(want) {
		t.Fatalf("got %+v", f.Beans)
	}
	for i, w := range want {
		b := f.Beans[i]
		if b.Element != w.Element || b.ID != w.ID || b.Class != w.Class || !maps.Equal(b.Properties, w.Properties) {
			t.Errorf("got  %+v\nwant %+v", b, w)
		}
	}
}

func TestProperties(t *testing.T) {
	f, err := Parse([]byte("# c\n! c\nvesta.machine=7\r\na.b : c d\nlist=1,\\\n   2\nempty=\n"), nil)
	want := map[string]string{"vesta.machine": "7", "a.b": "c d", "list": "1,2", "empty": ""}
	if err != nil || !maps.Equal(f.Properties, want) {
		t.Errorf("got %q, %v", f.Properties, err)
	}
}

func TestRefused(t *testing.T) {
	for name, text := range map[string]string{
		"entities":    `<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><beans><bean class="a"><property name="b" value="&x;"/></bean></beans>`,
		"entity":      `<beans><bean class="a"><property name="b" value="&x;"/></bean></beans>`,
		"deep":        strings.Repeat("<a>", 40),
		"many":        "<a>" + strings.Repeat("<b/>", maxElements) + "</a>",
		"large":       "<a>" + strings.Repeat(" ", MaxBytes) + "</a>",
		"cut":         "<beans><bean>",
		"end":         "</beans>",
		"no property": "=x",
	} {
		if f, err := Parse([]byte(text), nil); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v, %v", name, f, err)
		}
	}
	// A placeholder of itself ends.
	f, err := Parse([]byte(`<beans><bean class="c" p:a="${x}"/></beans>`), map[string]string{"x": "${x}${x}"})
	if err != nil || len(f.Beans) != 1 {
		t.Errorf("got %d beans, %v", len(f.Beans), err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte("a=b\\\nc"))
	f.Add([]byte("<a><property name='x'><value>y</value></property></a>"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = Parse(data, map[string]string{"port": "1"})
	})
}
