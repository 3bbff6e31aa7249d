package imports

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/compat/uidgen"
	"github.com/hapax-id/hapax/plan"
)

const cached = `<beans xmlns="http://www.springframework.org/schema/beans">
  <bean id="disposableWorkerIdAssigner" class="com.baidu.fsg.uid.worker.DisposableWorkerIdAssigner"/>
  <bean id="cachedUidGenerator" class="com.baidu.fsg.uid.impl.CachedUidGenerator">
    <property name="workerIdAssigner" ref="disposableWorkerIdAssigner"/>
    <property name="timeBits" value="29"/>
    <property name="workerBits" value="21"/>
    <property name="seqBits" value="13"/>
    <property name="epochStr" value="2016-09-20"/>
    <property name="boostPower" value="4"/>
    <property name="paddingFactor" value="60"/>
    <property name="scheduleInterval" value="60"/>
    <property name="rejectedPutBufferHandler"><bean class="com.x.Put"/></property>
    <property name="rejectedTakeBufferHandler" ref="take"/>
  </bean>
  <bean id="take" class="com.x.Take"/>
  <bean id="ds" class="com.alibaba.druid.pool.DruidDataSource"><property name="url" value="${mysql.url}"/></bean>
</beans>`

var now = time.Date(2026, 11, 1, 0, 0, 0, 823_900_000, time.UTC) // within a tick

func TestRead(t *testing.T) {
	c, err := Read([]byte(cached), map[string]string{"mysql.url": "jdbc:mysql://10.0.0.3:3306/uid?useSSL=false"}, nil)
	want := Config{
		Settings: uidgen.Settings{TimeBits: 29, WorkerBits: 21, SeqBits: 13, EpochStr: "2016-09-20"},
		Cached:   true, BoostPower: 4, Padding: true, Schedule: true,
		RejectedPut: "com.x.Put", RejectedTake: "com.x.Take", Assigner: "com.baidu.fsg.uid.worker.DisposableWorkerIdAssigner",
		Table: "mysql://10.0.0.3:3306/uid",
	}
	if c != want || err != nil {
		t.Fatalf("got  %+v, %v\nwant %+v", c, err, want)
	}
	p, err := NewPlan(c, nil, plan.Wishes{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	const block = `# Before: uidgenerator-29-21-13, time until 2033-09-24T10:48:32Z.
# rejectedPutBufferHandler is "com.x.Put": in Go, give yours as uidgen.CachedOptions.RejectedPut.
# rejectedTakeBufferHandler is "com.x.Take": in Go, give yours as uidgen.CachedOptions.RejectedTake.
# paddingFactor has no effect here: numbers are made when they are taken.
# scheduleInterval has no effect here: numbers are made when they are taken.
compat:
  uidgen:
    layout: "uidgenerator-29-21-13"
    table: "mysql://10.0.0.3:3306/uid"  # with USER:PASSWORD@ before the host
    boost_power: 4
`
	if got := string(p.AppendYAML(nil, c)); got != block {
		t.Errorf("got\n%s\nwant\n%s", got, block)
	}

	for name, text := range map[string]string{
		"properties":          "uid.timeBits=29\nuid.workerBits=21\nuid.epochStr=2016-09-20\nspring.datasource.url=jdbc:mysql://h/d\n",
		"kebab-case":          "uid.time-bits=29\nuid.worker-bits=21\nuid.epoch-str=2016-09-20\nspring.datasource.url=jdbc:mysql://h/d\n",
		"plain generator":     `<beans><bean class="x.DefaultUidGenerator"><property name="timeBits" value="29"/><property name="workerBits" value="21"/><property name="epochStr" value="2016-09-20"/></bean><bean class="ds"><property name="jdbcUrl" value="jdbc:mysql://h/d"/></bean></beans>`,
		"plain, p namespaces": `<beans><bean class="x.DefaultUidGenerator" p:timeBits="29" p:workerBits="21" p:epochStr="2016-09-20"/><bean class="ds" p:url="jdbc:mysql://h/d"/></beans>`,
	} {
		c, err := Read([]byte(text), nil, nil)
		want := Config{Settings: uidgen.Settings{TimeBits: 29, WorkerBits: 21, EpochStr: "2016-09-20"}, Table: "mysql://h/d"}
		if c != want || err != nil {
			t.Errorf("%s: got %+v, %v", name, c, err)
		}
	}
}

func TestRefused(t *testing.T) {
	for name, text := range map[string]string{
		"no generator": "<beans/>", "two": `<beans><bean class="DefaultUidGenerator"/><bean class="CachedUidGenerator"/></beans>`,
		"no setting": "a=b", "bits": "timeBits=many",
	} {
		if c, err := Read([]byte(text), nil, nil); !errors.Is(err, hapax.ErrInvalidArgument) {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

// The default layout's time is over, and 30, 22 and 11 bits go through its numbers again.
func TestPlan(t *testing.T) {
	over := Config{}
	copied := Config{Settings: uidgen.Settings{TimeBits: 30, WorkerBits: 22, SeqBits: 11, EpochStr: "2021-01-20"}}
	if _, err := NewPlan(over, nil, plan.Wishes{Now: now}); !errors.Is(err, hapax.ErrTimeExhausted) || !strings.Contains(err.Error(), "2024-11-20T13:24:16Z") {
		t.Errorf("the default layout: %v", err)
	}
	_, err := NewPlan(copied, nil, plan.Wishes{Now: now})
	if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "issues numbers that the default one of 28, 22 and 13 bits may have issued") {
		t.Errorf("30, 22 and 11: %v", err)
	}
	for _, used := range []plan.Span{{Min: 6755399441055744, Max: 9223372036854775807}, {Min: 1, Max: 1 << 52}} {
		p, err := NewPlan(over, &used, plan.Wishes{Now: now})
		if err != nil {
			t.Fatal(err)
		}
		if p.Values.Overlaps(used) || p.Values.Min > p.Values.Max {
			t.Errorf("%+v overlaps %+v", p.Values, used)
		}
		if _, _, ok := plan.Collisions(p.Layout, p.From, used); ok {
			t.Errorf("%s collides with %+v", p.Layout, used)
		}
		text := string(p.AppendYAML(nil, over))
		_, proof, _ := strings.Cut(text, "# Disjoint for ever: ")
		var a, b int64
		var relation string
		if _, err := fmt.Sscan(strings.ReplaceAll(proof, ",", " "), &a, &relation, &b); err != nil || (a > b) != (relation == ">") || a == b || !strings.Contains(text, p.Layout.String()) {
			t.Errorf("the proof is wrong, %v:\n%s", err, text)
		}
	}
	if p, err := NewPlan(over, &plan.Span{Min: 1, Max: 9223372036854775807}, plan.Wishes{Now: now}); err == nil {
		t.Errorf("there is no room, and still a plan: %+v", p)
	}
}
