package imports

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/accounting"
	"github.com/hapax-id/hapax/plan"
)

// poolKeys are the settings of the pool in uid-generator's data source, with the values that
// its properties file has.
const poolKeys = "filters=stat defaultAutoCommit=true initialSize=2 minIdle=0 maxWait=5000 testWhileIdle=true testOnBorrow=true testOnReturn=false " +
	"validationQuery=SELECT_1_FROM_DUAL timeBetweenEvictionRunsMillis=30000 minEvictableIdleTimeMillis=60000 logAbandoned=true removeAbandoned=true removeAbandonedTimeout=120"

// The files that uid-generator ships: one for each of its generators, the data source that
// both import, and the properties with the database.
func shippedFiles() accounting.Case {
	head := `<?xml version="1.0" encoding="UTF-8"?>
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:context="http://www.springframework.org/schema/context" xmlns:tx="http://www.springframework.org/schema/tx" xsi:schemaLocation="http://www.springframework.org/schema/beans http://www.springframework.org/schema/beans/spring-beans-3.1.xsd">
`
	bean := func(start string, properties ...string) string {
		b := "<bean " + start + ">"
		for i := 0; i < len(properties); i += 2 {
			b += `<property name="` + properties[i] + `" ` + properties[i+1] + "/>"
		}
		return b + "</bean>\n"
	}
	assigner := bean(`class="com.baidu.fsg.uid.worker.DisposableWorkerIdAssigner" id="disposableWorkerIdAssigner"`)
	const source = `<import resource="classpath:/uid/mybatis-spring.xml"/></beans>`
	var pool []string
	properties := "#datasource db info\nmysql.driver=com.mysql.jdbc.Driver\njdbc.url=jdbc:mysql://localhost:3306/xxxx\njdbc.username=root\njdbc.password=geheim\njdbc.maxActive=2\n\n#datasource base\n"
	for p := range strings.FieldsSeq(poolKeys) {
		name, value, _ := strings.Cut(p, "=")
		pool = append(pool, name, `value="${datasource.`+name+`}"`)
		properties += "datasource." + name + "=" + strings.ReplaceAll(value, "_", " ") + "\n"
	}
	return accounting.Case{
		"uid/default-uid-spring.xml": head + assigner + bean(`lazy-init="false" class="com.baidu.fsg.uid.impl.DefaultUidGenerator" id="defaultUidGenerator"`,
			"workerIdAssigner", `ref="disposableWorkerIdAssigner"`, "timeBits", `value="29"`, "workerBits", `value="21"`, "seqBits", `value="13"`, "epochStr", `value="2016-09-20"`) + source,
		"uid/cached-uid-spring.xml": "\ufeff" + head + assigner + bean(`class="com.baidu.fsg.uid.impl.CachedUidGenerator" id="cachedUidGenerator"`, "workerIdAssigner", `ref="disposableWorkerIdAssigner"`) +
			`<!--<property name="boostPower" value="3"></property>--><!--<property name="paddingFactor" value="50"></property>-->` + source,
		"uid/mybatis-spring.xml": head + bean(`class="org.springframework.beans.factory.config.PropertyPlaceholderConfigurer" id="propertyConfigurer"`, "properties", `ref="configProperties"`) +
			`<bean class="org.springframework.beans.factory.config.PropertiesFactoryBean" id="configProperties"><property name="locations"><list><value>classpath:/uid/*.properties</value></list></property></bean>
<context:component-scan base-package="com.baidu.fsg.uid"/>` +
			bean(`class="org.mybatis.spring.SqlSessionFactoryBean" id="sqlSessionFactory"`, "dataSource", `ref="dataSource"`, "mapperLocations", `value="classpath:/META-INF/mybatis/mapper/WORKER*.xml"`) +
			`<tx:annotation-driven order="1" transaction-manager="transactionManager"/>` +
			bean(`class="org.springframework.jdbc.datasource.DataSourceTransactionManager" id="transactionManager"`, "dataSource", `ref="dataSource"`) +
			bean(`class="org.mybatis.spring.mapper.MapperScannerConfigurer"`, "annotationClass", `value="org.springframework.stereotype.Repository"`, "basePackage", `value="com.baidu.fsg.uid.worker.dao"`, "sqlSessionFactoryBeanName", `value="sqlSessionFactory"`) +
			bean(`id="dataSource" parent="abstractDataSource"`, "driverClassName", `value="${mysql.driver}"`, "maxActive", `value="${jdbc.maxActive}"`, "url", `value="${jdbc.url}"`, "username", `value="${jdbc.username}"`, "password", `value="${jdbc.password}"`) +
			bean(`class="com.alibaba.druid.pool.DruidDataSource" id="abstractDataSource" destroy-method="close"`, pool...) +
			`<bean class="org.mybatis.spring.SqlSessionTemplate" id="batchSqlSession"><constructor-arg index="0" ref="sqlSessionFactory"/><constructor-arg index="1" value="BATCH"/></bean></beans>`,
		"uid/mysql.properties": properties,
	}
}

// The files that uid-generator ships are imported as they are, with everything they
// say: the time of the cached one's default layout is over, and with the numbers in use
// there is one to go on with.
func TestShippedFiles(t *testing.T) {
	dir := shippedFiles().Write(t)
	const kept = `compat:
  uidgen:
    layout: "uidgenerator-29-21-13"
    table: "mysql://root@localhost:3306/xxxx"
    # The password is not shown: write it into the URL, after the user and a colon.
`
	for name, c := range map[string]struct {
		file, properties string
		used             *plan.Span
		block            string
		over             bool
	}{
		"the plain generator":                     {"default-uid-spring.xml", "mysql.properties", nil, kept, false},
		"the cached generator":                    {"cached-uid-spring.xml", "mysql.properties", nil, "", true},
		"the cached generator, above its numbers": {"cached-uid-spring.xml", "mysql.properties", &plan.Span{Min: 1, Max: 1 << 52}, "    # WORKER_NODE, in \"mysql://root@localhost:3306/xxxx\", is not used any more\n    boost_power: 3\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			read, err := Read(Source{Open: openFile, Path: filepath.Join(dir, "uid", c.file), Properties: filepath.Join(dir, "uid", c.properties)})
			if err != nil {
				t.Fatal(err)
			}
			p, err := NewPlan(read, c.used, plan.Wishes{Now: now})
			if c.over {
				if !errors.Is(err, hapax.ErrTimeExhausted) || !strings.Contains(err.Error(), "2024-11-20T13:24:16Z") {
					t.Errorf("%v; want it to say when the time was over", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			out := string(p.AppendYAML(nil, read))
			if !strings.HasSuffix(out, c.block) || strings.Contains(out, "geheim") || strings.Contains(out, "\nstore:") != (c.used != nil) {
				t.Errorf("printed is\n%s\nwant at its end\n%s", out, c.block)
			}
			for _, want := range []string{
				"# Read as well: classpath:/uid/mybatis-spring.xml.\n", `# workerIdAssigner is "com.baidu.fsg.uid.worker.DisposableWorkerIdAssigner".`,
				"jdbc.password", "configProperties", "sqlSessionFactory", "transactionManager", "MapperScannerConfigurer", "batchSqlSession", "component-scan", "annotation-driven", "maxActive", "removeAbandonedTimeout", "validationQuery",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("nothing says %q in\n%s", want, out)
				}
			}
		})
	}
	// Without --properties the values are nowhere: Spring looks for all files of a directory.
	if _, err := Read(Source{Open: openFile, Path: filepath.Join(dir, "uid", "default-uid-spring.xml")}); !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "--properties") {
		t.Errorf("without properties: %v; want it to say --properties", err)
	}
}

// A generator of somebody's own is not taken for the one of uid-generator's that has its
// simple name.
func TestOthersGenerator(t *testing.T) {
	files := shippedFiles()
	files["uid/default-uid-spring.xml"] = strings.ReplaceAll(files["uid/default-uid-spring.xml"], "com.baidu.fsg.uid.impl.", "com.acme.")
	dir := files.Write(t)
	_, err := Read(Source{Open: openFile, Path: filepath.Join(dir, "uid/default-uid-spring.xml"), Properties: filepath.Join(dir, "uid/mysql.properties")})
	if !errors.Is(err, hapax.ErrInvalidArgument) || !strings.Contains(err.Error(), "bean defaultUidGenerator (com.acme.DefaultUidGenerator): its class is not uid-generator's own") {
		t.Errorf("%v; want it to name the class", err)
	}
}
