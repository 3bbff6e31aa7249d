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
	"github.com/hapax-id/hapax/plan"
)

func openFile(path string) (io.ReadCloser, error) { return os.Open(path) }

// The shapes of uid-generator's own samples: the generator's file imports that of the data
// source, whose values are those of a properties file. The first begins with a byte order
// mark.
var samples = accounting.Case{
	"uid/cached-uid-spring.xml": "\ufeff" + `<?xml version="1.0" encoding="UTF-8"?>
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
	xsi:schemaLocation="http://www.springframework.org/schema/beans http://www.springframework.org/schema/beans/spring-beans-3.0.xsd">
	<bean id="disposableWorkerIdAssigner" class="com.baidu.fsg.uid.worker.DisposableWorkerIdAssigner"/>
	<bean id="cachedUidGenerator" class="com.baidu.fsg.uid.impl.CachedUidGenerator">
		<property name="workerIdAssigner" ref="disposableWorkerIdAssigner"/>
		<property name="timeBits" value="29"/>
		<property name="workerBits"><value>21</value></property>
		<property name="seqBits" value="13"/>
		<property name="epochStr" value="2016-09-20"/>
		<property name="boostPower" value="3"/>
		<property name="paddingFactor" value="50"/>
		<property name="scheduleInterval" value="60"/>
		<property name="rejectedPutBufferHandler"><bean class="com.x.Put"/></property>
		<property name="rejectedTakeBufferHandler" ref="take"/>
	</bean>
	<bean id="take" class="com.x.Take" scope="singleton"/>
	<import resource="classpath:/uid/mybatis-spring.xml"/>
</beans>`,
	"uid/mybatis-spring.xml": `<beans xmlns="http://www.springframework.org/schema/beans" xmlns:context="http://c" xmlns:tx="http://t">
	<context:annotation-config/>
	<context:component-scan base-package="com.baidu.fsg.uid"/>
	<bean id="sqlSessionFactory" class="org.mybatis.spring.SqlSessionFactoryBean">
		<property name="dataSource" ref="dataSource"/>
		<property name="mapperLocations" value="classpath:/META-INF/mybatis/mapper/M_WORKER*.xml"/>
	</bean>
	<tx:annotation-driven transaction-manager="transactionManager" order="1"/>
	<bean id="abstractDataSource" class="com.alibaba.druid.pool.DruidDataSource" destroy-method="close" abstract="true">
		<property name="filters" value="${datasource.filters}"/>
		<property name="maxActive" value="${jdbc.maxActive}"/>
	</bean>
	<bean id="dataSource" parent="abstractDataSource">
		<property name="driverClassName" value="${mysql.driver}"/>
		<property name="url" value="${jdbc.url}"/>
		<property name="username" value="${jdbc.username}"/>
		<property name="password" value="${jdbc.password}"/>
	</bean>
	<bean id="batchSqlSession" class="org.mybatis.spring.SqlSessionTemplate">
		<constructor-arg index="0" ref="sqlSessionFactory"/>
		<constructor-arg index="1" value="BATCH"/>
	</bean>
</beans>`,
	"mysql.properties": `#datasource db info
mysql.driver=com.mysql.jdbc.Driver
jdbc.url=jdbc:mysql://10.0.0.3:3306/uid?useUnicode=true&useSSL=true
jdbc.username=root
jdbc.password=geheim
jdbc.maxActive=2
datasource.defaultAutoCommit=true
datasource.filters=stat
`,
}

func readSamples(dir string) (string, error) {
	c, err := Read(Source{Open: openFile, Path: filepath.Join(dir, "uid/cached-uid-spring.xml"), Properties: filepath.Join(dir, "mysql.properties")})
	if err != nil {
		return "", err
	}
	p, err := NewPlan(c, nil, plan.Wishes{Now: now})
	return string(p.AppendYAML(nil, c)), err
}

// Nothing in the files is lost unseen, and no password is printed.
func TestAccounting(t *testing.T) {
	out := samples.Check(t, func(dir string) (string, error) {
		out, err := readSamples(dir)
		// A password is hidden; that there is one is said.
		if strings.Contains(out, "geheim") {
			t.Error("the password is printed")
		}
		return out, err
	}, "jdbc.")
	for _, want := range []string{
		`table: "mysql://root@10.0.0.3:3306/uid?tls=true"`, "The password is not shown", `layout: "uidgenerator-29-21-13"`, "boost_power: 3",
		"paddingFactor", `rejectedTakeBufferHandler is "com.x.Take"`, "jdbc.maxActive", "sqlSessionFactory",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in\n%s", want, out)
		}
	}
}

// The data source's file need not be there, if the properties have its URL.
func TestWithoutTheDataSource(t *testing.T) {
	alone := accounting.Case{"uid/cached-uid-spring.xml": samples["uid/cached-uid-spring.xml"], "mysql.properties": samples["mysql.properties"]}
	out := alone.Check(t, readSamples, "jdbc.")
	if !strings.Contains(out, `table: "mysql://root@10.0.0.3:3306/uid?tls=true"`) || !strings.Contains(out, "not found beside the file, and not read: classpath:/uid/mybatis-spring.xml") {
		t.Errorf("printed is\n%s", out)
	}
}

// Where the old layout goes on, there is no block without WORKER_NODE.
func TestNoTable(t *testing.T) {
	generator := func(assigner string) accounting.Case {
		return accounting.Case{"uid.xml": `<beans><bean id="a" class="` + assigner + `"/><bean class="com.baidu.fsg.uid.impl.DefaultUidGenerator" p:timeBits="29" p:workerBits="21" p:epochStr="2016-09-20" p:workerIdAssigner-ref="a"/></beans>`}
	}
	for name, c := range map[string]struct{ assigner, table, want string }{
		"no table":            {"com.baidu.fsg.uid.worker.DisposableWorkerIdAssigner", "", "--table"},
		"their own":           {"com.x.Mine", "mysql://u@h/d", "com.x.Mine"},
		"their own, so named": {"com.acme.DisposableWorkerIdAssigner", "mysql://u@h/d", "com.acme.DisposableWorkerIdAssigner"},
		"published again":     {"com.xfvape.uid.worker.DisposableWorkerIdAssigner", "mysql://u:geheim@h:1/d", ""},
		"a table, by flag":    {"com.baidu.fsg.uid.worker.DisposableWorkerIdAssigner", "mysql://u:geheim@h:1/d", ""},
	} {
		read, err := Read(Source{Open: openFile, Path: filepath.Join(generator(c.assigner).Write(t), "uid.xml"), Table: c.table})
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewPlan(read, nil, plan.Wishes{Now: now})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
		if out := string(p.AppendYAML(nil, read)); err == nil && (!strings.Contains(out, `table: "mysql://u@h:1/d"`) || strings.Contains(out, "geheim")) {
			t.Errorf("%s: %s", name, out)
		}
	}
}

// Of several generators one is chosen, and the others are named.
func TestBean(t *testing.T) {
	file := accounting.Case{"uid.xml": `<beans>
	<bean id="assigner" class="com.baidu.fsg.uid.worker.DisposableWorkerIdAssigner"/>
	<bean id="orders" class="com.baidu.fsg.uid.impl.DefaultUidGenerator" p:timeBits="29" p:workerBits="21" p:seqBits="13" p:epochStr="2016-09-20" p:workerIdAssigner-ref="assigner"/>
	<bean id="users" class="com.baidu.fsg.uid.impl.CachedUidGenerator" p:timeBits="29" p:workerBits="21" p:epochStr="2016-09-20" p:workerIdAssigner-ref="assigner" p:boostPower="4"/>
</beans>`, "uid.properties": "uid.timeBits=29\n"}.Write(t)
	for name, c := range map[string]struct {
		file, bean, wrong string
		boost             int
	}{
		"none is chosen": {"uid.xml", "", "bean orders (com.baidu.fsg.uid.impl.DefaultUidGenerator), bean users (com.baidu.fsg.uid.impl.CachedUidGenerator); choose one with --bean ID", 0},
		"one":            {"uid.xml", "orders", "", 0},
		"the other":      {"uid.xml", "users", "", 4},
		"no generator":   {"uid.xml", "assigner", `invalid --bean "assigner"`, 0},
		"no bean":        {"uid.xml", "more", `invalid --bean "more"`, 0},
		"properties":     {"uid.properties", "orders", `invalid --bean "orders"`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Read(Source{Open: openFile, Path: filepath.Join(file, c.file), Table: "mysql://u@h/d", Bean: c.bean})
			if c.wrong != "" {
				if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("%v; want it to say %q", err, c.wrong)
				}
				return
			}
			p, planErr := NewPlan(got, nil, plan.Wishes{Now: now})
			text := string(p.AppendYAML(nil, got))
			other := map[string]string{"orders": "users", "users": "orders"}[c.bean]
			if err != nil || planErr != nil || got.BoostPower != c.boost || !strings.Contains(text, "Not read, of something else: bean "+other) {
				t.Errorf("%v, %v, boost power %d in\n%s", err, planErr, got.BoostPower, text)
			}
		})
	}
}
