package server

import (
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/testservers"
	"github.com/hapax-id/hapax/store/sqlstore/mysqlstore"
)

// An answerCase is a request and what the original answers to it, as it was recorded. In
// the body, «N» stands for a number, «G» for one with separators of thousands, «T» for a
// date, «U» for a timestamp and «MS» for milliseconds since 1970.
type answerCase struct {
	method, path, accept string
	status               int
	kind, body           string
}

var holes = strings.NewReplacer("«N»", `\d+`, "«G»", `[0-9,]+`, "«T»", `[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d CST \d{4}`, "«U»", `\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.0`, "«MS»", `\d{13}`)

// checkAnswers sends requests to an address of a foreign system.
func checkAnswers(t *testing.T, s *server, setting string, cases []answerCase) {
	t.Helper()
	base := "http://" + doorAt(t, s, setting).Addr().String()
	for _, c := range cases {
		req, err := http.NewRequestWithContext(t.Context(), c.method, base+c.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if c.accept != "" {
			req.Header.Set("Accept", c.accept)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Errorf("%s %s: %v", c.method, c.path, err)
			continue
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		want := regexp.MustCompile("^" + holes.Replace(regexp.QuoteMeta(c.body)) + "$")
		if res.StatusCode != c.status || res.Header.Get("Content-Type") != c.kind || !want.Match(body) {
			t.Errorf("%s %s, Accept %q:\n got %d %s %s\nwant %d %s %s", c.method, c.path, c.accept, res.StatusCode, res.Header.Get("Content-Type"), body, c.status, c.kind, c.body)
		}
	}
}

// database makes one of the test's own, and returns its URL.
func database(t *testing.T, name string, statements ...string) string {
	t.Helper()
	server := testservers.SharedMariaDB(t)
	root, err := mysqlstore.OpenDB(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	for _, statement := range []string{"DROP DATABASE IF EXISTS " + name, "CREATE DATABASE " + name} {
		if _, err := root.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	own, err := mysqlstore.OpenDB(u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for _, statement := range statements {
		if _, err := own.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return u.String()
}

const (
	asText = "text/plain;charset=UTF-8"
	asHTML = "text/html;charset=UTF-8"
	asJSON = "application/json;charset=UTF-8"
	asXML  = "application/xml;charset=UTF-8"

	browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	java    = "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"

	doctype = `<!DOCTYPE html PUBLIC "-//W3C//DTD HTML 4.01 Transitional//EN" "http://www.w3.org/TR/html4/loose.dtd">`
)

// TestLeafAnswers holds Leaf's routes to answers recorded of Leaf.
func TestLeafAnswers(t *testing.T) {
	table := database(t, "hapax_leaf_answers",
		`CREATE TABLE leaf_alloc (biz_tag varchar(128) NOT NULL DEFAULT '' PRIMARY KEY, max_id bigint NOT NULL DEFAULT '1', step int NOT NULL,
			description varchar(256), update_time timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP)`,
		"INSERT INTO leaf_alloc (biz_tag, max_id, step) VALUES ('key', 10001, 1000000), ('unused', 1, 2000)")
	s, _ := serveCompat(t, "  leaf: {table: %q, tree: native, http: 127.0.0.1:0, zone: Asia/Shanghai}", table)
	const segment, flake = "/api/segment/get/key", "/api/snowflake/get/key"
	none := `<html><body><h1>Whitelabel Error Page</h1><p>This application has no explicit mapping for /error, so you are seeing this as a fallback.</p>` +
		`<div id='created'>«T»</div><div>There was an unexpected error (type=Internal Server Error, status=500).</div><div>Result{id=-2, status=EXCEPTION}</div></body></html>`
	row := func(cells ...string) string {
		return "        <tr>\n            <td>" + strings.Join(cells, "</td>\n            <td>") + "</td>\n        </tr>\n        <tr>\n        </tr>\n\n"
	}
	var cases []answerCase
	for _, path := range []string{segment, flake} {
		cases = append(cases, []answerCase{
			{"GET", path, "", 200, asText, "«N»"},
			{"GET", path, browser, 200, asHTML, "«N»"},
			{"GET", path, java, 200, asHTML, "«N»"},
			{"GET", path, "application/xml", 200, asXML, "«N»"},
			{"GET", path, "application/json;charset=UTF-8", 200, asJSON, "«N»"},
			{"PUT", path, "", 200, asText, "«N»"},
			{"DELETE", path, "", 200, asText, "«N»"},
			{"OPTIONS", path, "", 200, "", ""},
			{"GET", path + ";a=1", "", 200, asText, "«N»"},
			{"GET", path + ".json", "", 200, asJSON, "«N»"},
			{"GET", path + ".x", "", 200, asText, "«N»"},
		}...)
	}
	cases = append(cases, []answerCase{
		{"GET", "/api/segment/get/none", browser, 500, asHTML, none},
		{"GET", "/api/segment/get/none", "", 500, asJSON, `{"timestamp":«MS»,"status":500,"error":"Internal Server Error","exception":"com.sankuai.inf.leaf.server.exception.LeafServerException","message":"Result{id=-2, status=EXCEPTION}","path":"/api/segment/get/none"}`},
		{"GET", "/decodeSnowflakeId?snowflakeId=abc", "", 200, asJSON, `{"errorMsg":"snowflake Id反解析发生异常!"}`},
		{"GET", "/decodeSnowflakeId?snowflakeId=4096", "", 200, asJSON, `{"workerId":"1","sequenceId":"0","timestamp":"1288834974657(2010-11-04 09:42:54.657)"}`},
		{"GET", "/decodeSnowflakeId?snowflakeId=abc", browser, 200, asJSON, `{"errorMsg":"snowflake Id反解析发生异常!"}`},
		{"GET", "/decodeSnowflakeId?snowflakeId=4096", "text/plain", 406, "", ""},
		{"GET", "/decodeSnowflakeId.txt?snowflakeId=4096", "", 406, "", ""},
		{"GET", "/decodeSnowflakeId?snowflakeId=4096", "text/html", 406, asHTML, strings.NewReplacer("Internal Server Error", "Not Acceptable", "500", "406", "Result{id=-2, status=EXCEPTION}", "Could not find acceptable representation").Replace(none)},
		{"GET", "/decodeSnowflakeId.json?snowflakeId=4096", "", 200, asJSON, `{"workerId":"1","sequenceId":"0","timestamp":"1288834974657(2010-11-04 09:42:54.657)"}`},
		{"GET", "/cache", browser, 200, asHTML, doctype + `
<html>
<head>
    <meta http-equiv="Content-Type" content="text/html; charset=UTF-8">
    <title>Leaf</title>
    <link href="/css/bootstrap.min.css" rel="stylesheet">
</head>
<body>
<table class="table table-hover">
    <thead>
    <tr>
        <th>name</th>
        <th>init</th>
        <th>next</th>
        <th>pos</th>
        <th>value0</th>
        <th>max0</th>
        <th>step0</th>
        <th>value1</th>
        <th>max1</th>
        <th>step1</th>

    </tr>
    </thead>
    <tbody>
` + row("key", "true", "false", "0", "10,011", "1,010,001", "1,000,000", "0", "0", "0") + row("unused", "false", "false", "0", "0", "0", "0", "0", "0", "0") + `    <tbody>
</table>
</body>
</html>`},
		{"GET", "/db", "", 200, asHTML, doctype + `
<html>
<head>
<meta http-equiv="Content-Type" content="text/html; charset=UTF-8">
<title>Leaf</title>
<link href="/css/bootstrap.min.css" rel="stylesheet">
</head>
<body>
<table class="table table-hover">
<thead>
<tr>
<th>tag</th>
<th>max</th>
<th>step</th>
<th>update</th>
</tr>
</thead>
<tbody>
<tr>
<td>key</td>
<td>1,010,001</td>
<td>1,000,000</td>
<td>«U»</td>
</tr>
<tr>
</tr>

<tr>
<td>unused</td>
<td>1</td>
<td>2,000</td>
<td>«U»</td>
</tr>
<tr>
</tr>

<tbody>
</table>
</body>
</html>`},
	}...)
	checkAnswers(t, s, "compat.leaf.http", cases)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, "http://"+doorAt(t, s, "compat.leaf.http").Addr().String()+segment, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if allow := res.Header.Get("Allow"); allow != "GET,HEAD,POST,PUT,PATCH,DELETE,OPTIONS" {
		t.Errorf("Allow is %q", allow)
	}

	shared, _ := serveCompat(t, "  leaf: {}")
	for _, path := range []string{"/cache.json", "/db.html", "/cache/", "/decodeSnowflakeId.json?snowflakeId=4096", "/api/snowflake/get/x.y"} {
		if status, body := get(t, shared.listeners.http, path); status != http.StatusOK {
			t.Errorf("%s at the main listener: %d %s", path, status, body)
		}
	}

	off, _ := serveCompat(t, "  leaf: {tree: native, http: 127.0.0.1:0}")
	fault := `{"timestamp":«MS»,"status":500,"error":"Internal Server Error","exception":"java.lang.IllegalArgumentException","message":"You should config leaf.segment.enable=true first","path":"`
	checkAnswers(t, off, "compat.leaf.http", []answerCase{
		{"GET", "/db", "", 500, asJSON, fault + `/db"}`},
		{"GET", "/cache", "", 500, asJSON, fault + `/cache"}`},
	})
}

// TestTinyIDAnswers holds TinyID's routes to answers recorded of TinyID.
func TestTinyIDAnswers(t *testing.T) {
	info := `CREATE TABLE tiny_id_info (id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY, biz_type varchar(63) NOT NULL DEFAULT '' UNIQUE, begin_id bigint NOT NULL DEFAULT 0,
			max_id bigint NOT NULL DEFAULT 0, step int DEFAULT 0, delta int NOT NULL DEFAULT 1, remainder int NOT NULL DEFAULT 0,
			create_time timestamp NOT NULL DEFAULT '2010-01-01 00:00:00', update_time timestamp NOT NULL DEFAULT '2010-01-01 00:00:00', version bigint NOT NULL DEFAULT 0)`
	tables := []string{
		info,
		`CREATE TABLE tiny_id_token (id int unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY, token varchar(255) NOT NULL DEFAULT '', biz_type varchar(63) NOT NULL DEFAULT '',
			remark varchar(255) NOT NULL DEFAULT '', create_time timestamp NOT NULL DEFAULT '2010-01-01 00:00:00', update_time timestamp NOT NULL DEFAULT '2010-01-01 00:00:00')`,
		"INSERT INTO tiny_id_info (biz_type, begin_id, max_id, step) VALUES ('a', 1, 1, 100000)",
		"INSERT INTO tiny_id_token (token, biz_type) VALUES ('t', 'a'), ('t', 'none')",
	}
	s, _ := serveCompat(t, "  tinyid: {databases: [%q], http: 127.0.0.1:0}", database(t, "hapax_tinyid_answers", tables...))
	const id = "/tinyid/id/"
	badRequest := `<!doctype html><html lang="en"><head><title>HTTP Status 400 – Bad Request</title></head><body><h1>HTTP Status 400 – Bad Request</h1><hr class="line" /><p><b>Type</b> Status Report</p>` +
		`<p><b>Description</b> The server cannot or will not process the request due to something that is perceived to be a client error (e.g., malformed request syntax, invalid request message framing, or deceptive request routing).</p></body></html>`
	checkAnswers(t, s, "compat.tinyid.http", []answerCase{
		{"GET", id + "nextId?bizType=a&token=t&batchSize=0", "", 200, asJSON, `{"data":[],"code":200,"message":""}`},
		{"GET", id + "nextId?bizType=a&token=t&batchSize=-1", "", 200, asJSON, `{"data":[],"code":200,"message":""}`},
		{"GET", id + "nextId?bizType=a&token=t", "", 200, asJSON, `{"data":[2],"code":200,"message":""}`},
		{"GET", id + "nextId?bizType=a&bizType=b&token=t", "", 200, asJSON, `{"data":null,"code":5,"message":"token is error"}`},
		{"GET", id + "nextId?bizType=a&token=t&batchSize=x", "", 400, "text/html;charset=utf-8", badRequest},
		{"GET", id + "nextSegmentId?bizType=none&token=t", "", 200, asJSON, `{"data":null,"code":6,"message":"can not find biztype:none"}`},
		{"GET", id + "nextId?bizType=none&token=t", "", 200, asJSON, `{"data":null,"code":6,"message":"error query segmentId: can not find biztype:none"}`},
		{"GET", id + "nextIdSimple?bizType=a&token=t", browser, 200, asHTML, "3"},
		{"POST", id + "nextSegmentIdSimple?bizType=a&token=t", java, 200, asHTML, "«N»,«N»,«N»,1,0"},
		{"PUT", id + "nextIdSimple.json;a=1?bizType=a&token=t", "", 200, asJSON, "4"},
		{"DELETE", id + "nextIdSimple?bizType=a&token=t&batchSize=2", "application/xml", 200, asXML, "5,6"},
		{"GET", id + "nextId?bizType=a&token=wrong", "image/png", 406, "", ""},
		{"GET", id + "nextIdSimple?bizType=a&token=t&batchSize=0", "image/png", 200, "image/png;charset=UTF-8", ""},
	})

	// A row that is never as it was read: its id is another one each time.
	tables[0] = strings.Replace(info, "id bigint unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY", "id bigint AS (1 + FLOOR(RAND() * 1000000000)) VIRTUAL", 1)
	s, _ = serveCompat(t, "  tinyid: {databases: [%q], http: 127.0.0.1:0}", database(t, "hapax_tinyid_conflict", tables...))
	checkAnswers(t, s, "compat.tinyid.http", []answerCase{
		{"GET", id + "nextSegmentId?bizType=a&token=t", "", 200, asJSON, `{"data":null,"code":6,"message":"get next segmentId conflict"}`},
	})
}

// TestVestaAnswers holds Vesta's routes to answers recorded of its server on Netty.
func TestVestaAnswers(t *testing.T) {
	s, _ := serveCompat(t, `  vesta: {machine: "fixed:1021", http: 127.0.0.1:0, zone: Asia/Shanghai}`)
	const text = "text/plain"
	help := "\r\nPlease input right URI:\r\n    Example 1: http://ip:port/genid\r\n    Example 2: http://ip:port/expid?id=?\r\n    Example 3: http://ip:port/transtime?time=?" +
		"\r\n    Example 4: http://ip:port/makeid?version=?&type=?&genmethod=?&machine=?&time=?&seq=?"
	checkAnswers(t, s, "compat.vesta.http", []answerCase{
		{"GET", "/genid", browser, 200, text, "«N»"},
		{"DELETE", "/genid", "", 200, text, "«N»"},
		{"GET", "/makeid", "", 200, text, "Both time and seq are required.-1"},
		{"GET", "/makeid?time=1", "", 200, text, "Both time and seq are required.-1"},
		{"GET", "/makeid?time=-1&seq=2", "", 200, text, "Both time and seq are required.-1"},
		{"GET", "/makeid?time=94990103&seq=0", "", 200, text, "2407837855670862845"},
		{"PUT", "/makeid?time=1&time=94990103&seq=0", "", 200, text, "2407837855670862845"},
		{"GET", "/makeid?version=0&type=0&genMethod=1&machine=7&time=94990103&seq=2", "", 200, text, "1254916351064016903"},
		{"GET", "/makeid?genMethod=1&time=94990103&seq=0", "", 200, text, "-1"},
		{"GET", "/makeid?version=0&time=1&seq=1", "", 200, text, "-1"}, // each field that is missing is -1
		{"GET", "/transtime", "", 200, text, "Wed Dec 31 23:59:59 CST 2014"},
		{"GET", "/transtime?time=12758739", "", 200, text, "Thu May 28 16:05:39 CST 2015"},
		{"GET", "/expid", "", 200, text, `{"genMethod":3,"machine":1023,"seq":1023,"time":1099511627775,"type":1,"version":1}`},
		{"GET", "/expid?id=2319542600899494910", "", 200, text, `{"genMethod":2,"machine":1022,"seq":0,"time":12758739,"type":0,"version":0}`},
		{"GET", "/", "", 200, text, help},
		{"POST", "/genid/", "", 200, text, help},
	})
	for _, path := range []string{"/expid?id=x", "/genid?seq=1.5"} {
		if res, err := http.Get("http://" + doorAt(t, s, "compat.vesta.http").Addr().String() + path); err == nil {
			_ = res.Body.Close()
			t.Errorf("%s: %d; want a connection that is closed", path, res.StatusCode)
		}
	}
}
