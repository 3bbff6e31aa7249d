package springxml

import (
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/moves"
)

const sample = `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE beans PUBLIC "-//SPRING//DTD BEAN//EN" "http://www.springframework.org/dtd/spring-beans.dtd">
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:dubbo="http://d" xmlns:p="http://p">
  <!-- a comment -->
  <dubbo:registry address="zookeeper://10.0.0.8:2181"/>
  <bean id="gen" class="com.x.Gen" p:port="${port:81}" p:assigner-ref="a">
    <property name="timeBits" value="29"/>
    <property name="epochStr"><value> ${epoch} </value></property>
    <property name="other" ref="o"/>
    <property name="third"><ref bean="t"/></property>
    <property name="ids"><list><value>1</value><value>2</value></list></property>
    <property name="handler"><bean class="com.x.Handler"><property name="deep" value="1"/></bean></property>
    <constructor-arg value="seconds"/>
  </bean>
  <import resource="classpath:more.xml"/>
  <alias name="gen" alias="generator"/>
</beans>`

// opening opens files by their names below /app/conf, whose contents are given.
func opening(files map[string]string) Open {
	return func(path string) (io.ReadCloser, error) {
		name, err := filepath.Rel("/app/conf", path)
		text, ok := files[name]
		if err != nil || !ok {
			return nil, fs.ErrNotExist
		}
		return io.NopCloser(strings.NewReader(text)), nil
	}
}

func document(files map[string]string, properties string) (*Document, *moves.Account, error) {
	a := new(moves.Account)
	if properties != "" {
		properties = "/app/conf/" + properties
	}
	d, err := Read(opening(files), "/app/conf/main.xml", properties, a)
	return d, a, err
}

func TestDocument(t *testing.T) {
	d, a, err := document(map[string]string{
		"main.xml": sample, "../more.xml": `<beans><bean id="o" class="x.O"/><bean id="t" class="x.T"/><bean id="a" class="x.A"/></beans>`,
		"p": "epoch=${day}\nday=2016-09-20\nleft=1\nport=80\n",
	}, "p")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	text := func(where string, v Value) { got[where[strings.LastIndexByte(where, ' ')+1:]] = d.Text(where, v) }
	class := func(where string, v Value) { got[where[strings.LastIndexByte(where, ' ')+1:]] = d.Bean(where, v).Is() }
	list := func(where string, v Value) {
		got[where[strings.LastIndexByte(where, ' ')+1:]] = strings.Join(d.Texts(where, v), ",")
	}
	gen := d.named("generator")
	if gen == nil || len(d.Beans) != 4 || len(d.Elements) != 1 {
		t.Fatalf("got %+v", d.Beans)
	}
	d.Claim(gen, map[string]Taker{"port": text, "timeBits": text, "epochStr": text, "other": class, "third": class, "assigner": class, "handler": class, "ids": list}, func(_ string, args []Property) { text(" args", args[0].Value) })
	d.Finish()
	for name, want := range map[string]string{"port": "80", "timeBits": "29", "epochStr": "2016-09-20", "other": "O", "third": "T", "assigner": "A", "handler": "Handler", "ids": "1,2", "args": "seconds"} {
		if got[name] != want {
			t.Errorf("%s is %q; want %q", name, got[name], want)
		}
	}
	if err := a.Err(); err != nil || !strings.Contains(a.Comments(), "<dubbo:registry address>") || !strings.Contains(a.Comments(), "left") {
		t.Errorf("%v\n%s", err, a.Comments())
	}
}

func TestRefused(t *testing.T) {
	for name, text := range map[string]string{
		"entities":     `<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><beans><bean class="a"><property name="b" value="&x;"/></bean></beans>`,
		"entity":       `<beans><bean class="a"><property name="b" value="&x;"/></bean></beans>`,
		"deep":         strings.Repeat("<a>", 40),
		"many":         "<beans>" + strings.Repeat("<b/>", maxElements) + "</beans>",
		"large":        "<a>" + strings.Repeat(" ", MaxBytes) + "</a>",
		"cut":          "<beans><bean>",
		"end":          "</beans>",
		"crossed":      "<beans><bean></beans></bean>",
		"two":          "<beans/><beans/>",
		"another root": "<project/>",
		"no property":  "=x",
	} {
		if d, _, err := document(map[string]string{"main.xml": text}, ""); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
	for name, text := range map[string]string{
		"profile": `<beans profile="dev"/>`,
		"import":  `<beans><import resource="main.xml" other="x"/></beans>`,
	} {
		if _, a, err := document(map[string]string{"main.xml": text}, ""); err != nil || a.Err() == nil {
			t.Errorf("%s: %v, %v", name, err, a.Err())
		}
	}
	// A placeholder of itself ends, and files that import each other do.
	d, a, err := document(map[string]string{"main.xml": `<beans><bean class="c" p:a="${x}"/><import resource="other.xml"/></beans>`, "other.xml": `<beans><import resource="main.xml"/></beans>`, "p": "x=${x}${x}\n"}, "p")
	if err != nil || len(d.Beans) != 1 {
		t.Fatalf("got %+v, %v", d, err)
	}
	d.Claim(d.Beans[0], map[string]Taker{"a": func(where string, v Value) { d.Text(where, v) }}, nil)
	if a.Err() == nil {
		t.Error("a value that has no end is taken")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(sample)
	f.Add("a=b\\\nc")
	f.Add(`<beans><property name='x'><value>y</value></property><bean parent="p" c:_0="1"/></beans>`)
	f.Fuzz(func(_ *testing.T, text string) {
		d, _, err := document(map[string]string{"main.xml": text, "p": "port=1"}, "")
		if err != nil || d.Properties != nil {
			return
		}
		d.DataSource()
		for _, b := range d.Beans {
			d.Claim(b, nil, nil, "*")
		}
		d.Finish()
	})
}
