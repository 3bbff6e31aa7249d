// Package deps holds the rules of which package may import which, and the test
// that the tree keeps them.
package deps

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const module = "github.com/hapax-id/hapax"

// A rule says what the packages that match a pattern may import of this module.
// Patterns are paths below the module; "root" is the module itself, /* at the end stands
// for everything below, and SYSTEM for the element of the package after internal/mount.
type rule struct {
	of    string
	allow []string
}

// rules has a row for every package; the first that matches counts. Tests are
// free to import more.
var rules = []rule{
	{"root", nil},
	{"codec", []string{"root"}},
	{"strategy", []string{"root", "codec", "internal/journal"}},
	{"internal/journal", []string{"internal/durable"}},
	{"internal/ledger", []string{"root", "api", "internal/journal", "store/driver", "store/witness", "strategy"}},
	{"identity", []string{"root"}},
	{"plan", []string{"root"}},
	{"internal/audit", []string{"root", "store/witness", "internal/journal", "internal/ledger"}},
	{"internal/deps", nil},
	{"internal/packagesdoc", nil},
	{"internal/patience", nil},
	{"internal/twins", nil},
	{"internal/batch", nil},
	{"internal/testservers/share", []string{"internal/testservers"}},
	{"internal/testservers", []string{"internal/patience"}},
	{"internal/durable", nil},
	{"internal/zksession", nil},
	{"internal/ondemand", []string{"root"}},
	{"internal/supervise", []string{"root"}},
	{"internal/durable/losing", []string{"internal/durable"}},
	{"store/internal/coordtest", []string{"root", "store/driver", "internal/patience", "internal/testservers"}},
	{"store/internal/fileid", nil},
	{"store/driver", []string{"root"}},
	{"store/witness/internal/model", nil},
	{"store/witness", []string{"root", "store/driver", "store/internal/fileid", "internal/batch", "internal/durable", "internal/ondemand"}},
	{"store/internal/*", []string{"root", "store/driver"}},
	{"store/storetest", []string{"root", "store/driver", "internal/patience"}},
	{"store/sqlstore/internal/handle", []string{"root"}},
	{"store/sqlstore/*", []string{"root", "store/driver", "store/sqlstore", "store/sqlstore/internal/handle"}},
	{"store/sqlstore", []string{"root", "store/driver", "store/sqlstore/internal/handle"}},
	{"store/zkstore", []string{"root", "store/driver", "store/internal/coord", "internal/zksession"}},
	{"store/boltstore", []string{"root", "store/driver", "store/internal/fileid", "internal/batch", "internal/durable"}},
	{"store/*", []string{"root", "store/driver", "store/internal/coord", "store/internal/fileid", "internal/durable"}},
	{"client", []string{"root", "store/driver", "strategy", "api", "api/hapaxv1/*", "api/hapaxv1", "internal/batch", "internal/wire"}},
	{"api/hapaxv1/*", []string{"api/hapaxv1"}},
	{"api/hapaxv1", nil},
	{"api", []string{"root"}},
	{"internal/wire", []string{"root", "internal/durable", "store/driver", "strategy", "api", "api/hapaxv1"}},
	{"internal/build", []string{"root"}},
	{"internal/service", []string{"root", "codec", "identity", "internal/ledger", "internal/signals", "internal/service/auth", "internal/service/define", "internal/service/health", "internal/service/watch", "store/driver", "store/witness", "strategy", "api"}},
	{"internal/service/health", []string{"root", "internal/build", "internal/durable", "internal/signals", "internal/ledger", "internal/service/watch", "store/driver", "store/witness", "strategy", "api"}},
	{"internal/service/define", []string{"root", "codec", "strategy", "api"}},
	{"internal/service/auth", []string{"root", "strategy", "api"}},
	{"internal/service/watch", []string{"root", "internal/ledger", "internal/service/define", "store/driver"}},
	{"internal/api/rpcapi", []string{"root", "internal/service", "internal/service/health", "internal/service/define", "internal/service/auth", "internal/wire", "api", "api/hapaxv1", "api/hapaxv1/*", "store/driver", "store/witness", "strategy"}},
	{"docs", nil},
	{"internal/site", []string{"root", "docs"}},
	{"internal/console", []string{"root", "internal/build", "internal/site", "internal/durable", "internal/fleet", "internal/ledger", "internal/service", "internal/service/health", "internal/service/define", "internal/service/auth", "internal/signals", "store/driver", "store/witness", "plan", "api"}},
	{"internal/fleet", []string{"root", "internal/service", "internal/service/auth", "store/witness", "api"}},
	{"internal/gate", nil},
	{"internal/hangup", nil},
	{"internal/testserver", []string{"root", "api", "store/memstore", "internal/service", "internal/service/auth", "internal/api/httpapi"}},
	{"internal/api/*", []string{"root", "internal/build", "internal/durable", "internal/ledger", "internal/service", "internal/service/health", "internal/service/define", "internal/service/auth", "internal/gate", "internal/hangup", "internal/signals", "store/driver", "strategy", "api"}},
	{"internal/moves", []string{"root", "internal/service/define", "store/driver"}},
	{"internal/dump", []string{"root", "store/driver", "store/witness"}},
	{"internal/mount", []string{"root", "internal/moves", "internal/ondemand", "internal/ledger", "api", "internal/service", "internal/service/health", "internal/service/define", "store/driver", "store/memstore", "store/witness", "strategy"}},
	{"internal/mount/vesta/imports", []string{"root", "internal/compat/springxml", "internal/moves"}},
	{"internal/mount/uidgen/imports", []string{"root", "compat/uidgen", "internal/compat/springxml", "internal/moves", "plan"}},
	{"internal/mount/redismongo", []string{"root", "identity", "internal/ledger", "internal/moves", "internal/mount", "internal/service", "internal/service/define", "strategy", "compat/redismongo", "internal/compat/collection", "store/mongostore", "store/redisstore"}},
	{"internal/compat/collection", []string{"root"}},
	{"internal/mount/*", []string{"root", "internal/signals", "internal/ondemand", "store/driver", "store/leasecache", "internal/mount", "internal/moves", "plan", "api", "internal/service", "internal/service/health", "internal/service/define", "internal/service/auth", "internal/gate", "internal/compat/springxml", "compat/SYSTEM", "compat/SYSTEM/*", "internal/mount/SYSTEM/*", "internal/compat/*"}},
	{"compat/sequences", []string{"root", "internal/compat/mysqldb", "store/redisstore", "store/mongostore"}},
	{"compat/vesta", []string{"root", "identity"}},
	{"compat/vesta/dubbo/registry", []string{"root", "internal/zksession"}},
	{"compat/vesta/rest", []string{"root", "compat/vesta", "internal/compat/spring"}},
	{"compat/vesta/*", []string{"root", "compat/vesta"}},
	{"internal/compat/springxml", []string{"root", "internal/moves"}},
	{"compat/uidgen", []string{"root", "internal/durable"}},
	{"compat/redismongo", []string{"root", "store/memstore", "internal/durable", "internal/compat/keeper"}},
	{"internal/compat/fleet", []string{"root"}},
	{"internal/compat/database", []string{"internal/mount", "store/sqlstore/mysqlstore"}},
	{"internal/compat/testdb", []string{"root", "internal/testservers"}},
	{"internal/compat/contest", []string{"root", "internal/moves", "internal/testservers", "store/driver", "store/memstore"}},
	{"internal/compat/keeper", []string{"root", "internal/zksession"}},
	{"internal/compat/marks", []string{"root", "store/witness"}},
	{"internal/moves", []string{"root", "internal/service/define", "store/driver"}},
	{"internal/compat/*", []string{"root"}},
	{"compat/leaf/routes", []string{"root", "internal/compat/spring"}},
	{"compat/tinyid/routes", []string{"root", "internal/compat/spring"}},
	{"compat/leaf", []string{"root", "store/driver", "store/witness", "internal/durable", "internal/compat/keeper", "internal/compat/mysqldb", "internal/compat/marks", "internal/moves"}},
	{"compat/tinyid", []string{"root", "store/driver", "store/witness", "internal/compat/mysqldb", "internal/compat/marks", "internal/moves"}},
	{"internal/server", slices.Concat([]string{"root", "identity", "internal/build", "internal/console", "internal/fleet", "internal/gate", "internal/durable", "internal/journal", "internal/ledger", "store/driver", "store/witness", "codec", "strategy", "api", "internal/service", "internal/service/health", "internal/service/define", "internal/service/auth", "internal/signals", "internal/api/*", "internal/mount", "internal/mount/*", "compat/*"}, stores)},
	{"internal/cli", []string{"root", "internal/build", "store/driver", "store/witness", "api", "client", "plan", "internal/mount", "internal/moves", "internal/audit", "internal/dump", "internal/durable", "internal/ledger", "internal/server", "internal/service", "internal/service/health", "internal/service/define", "internal/service/auth", "internal/signals", "internal/supervise", "internal/testserver", "strategy"}},
	{"server", []string{"store/driver", "strategy", "internal/cli"}},
	{"internal/e2e", nil}, // tests alone
	{"internal/configdoc", []string{"internal/server"}},
	{"internal/codesdoc", []string{"root", "codec"}},
	{"internal/signals", nil},
	{"internal/signalsdoc", []string{"internal/server", "internal/service/health", "internal/signals"}},
	{"cmd/hapax", []string{"internal/cli"}},
}

// stores are what the server can choose from.
var stores = []string{
	"store/memstore", "store/leasecache", "store/boltstore",
	"store/sqlstore", "store/sqlstore/mysqlstore", "store/sqlstore/postgresstore",
	"store/redisstore", "store/mongostore", "store/etcdstore", "store/zkstore",
}

// drivers are the stores, and what else speaks to a foreign system, that need other
// modules. A program that uses one gets none of the others; the packages below server
// get none at all.
var drivers = map[string][]string{
	"store/boltstore":              {"go.etcd.io/bbolt"},
	"store/sqlstore/mysqlstore":    {"github.com/go-sql-driver/mysql"},
	"store/sqlstore/postgresstore": {"github.com/jackc/pgx"},
	"store/redisstore":             {"github.com/redis/go-redis"},
	"compat/sequences":             {"github.com/go-sql-driver/mysql", "github.com/jackc/pgx", "github.com/redis/go-redis", "go.mongodb.org/mongo-driver"},
	"store/mongostore":             {"go.mongodb.org/mongo-driver"},
	"store/etcdstore":              {"go.etcd.io/etcd"},
	"store/zkstore":                {"github.com/go-zookeeper/zk"},

	"compat/vesta/dubbo/registry": {"github.com/go-zookeeper/zk"},
	"compat/redismongo":           {"github.com/redis/go-redis", "github.com/go-zookeeper/zk"},
	"internal/compat/collection":  {"go.mongodb.org/mongo-driver"},
	"internal/compat/keeper":      {"github.com/go-zookeeper/zk"},
	"internal/zksession":          {"github.com/go-zookeeper/zk"},
	"internal/compat/mysqldb":     {"github.com/go-sql-driver/mysql"},
	"internal/compat/database":    {"github.com/go-sql-driver/mysql"},
	"internal/compat/testdb":      {"github.com/go-sql-driver/mysql"},
	"compat/leaf":                 {"github.com/go-sql-driver/mysql", "github.com/go-zookeeper/zk"},
	"compat/tinyid":               {"github.com/go-sql-driver/mysql"},
}

// aboveDrivers are the packages that may depend on every driver.
var aboveDrivers = []string{"internal/mount/*", "internal/server", "internal/cli", "internal/configdoc", "internal/signalsdoc", "cmd/hapax", "server"}

// pkg is what go list tells of a package.
type pkg struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
}

// name returns a package's path below the module.
func name(importPath string) (string, bool) {
	if importPath == module {
		return "root", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

func matches(pattern, name string) bool {
	if dir, ok := strings.CutSuffix(pattern, "/*"); ok {
		return strings.HasPrefix(name, dir+"/")
	}
	ok, _ := path.Match(pattern, name) // no pattern here is malformed
	return ok
}

// resolved returns what the rule allows a package that it is for.
func (r rule) resolved(from string) []string {
	rest, _ := strings.CutPrefix(from, "internal/mount/")
	system, _, _ := strings.Cut(rest, "/")
	var all []string
	for _, pattern := range r.allow {
		all = append(all, strings.ReplaceAll(pattern, "SYSTEM", system))
	}
	return all
}

// violations returns one line for each rule that is broken.
func violations(pkgs []pkg) []string {
	var found []string
	standard := map[string]bool{}
	for _, p := range pkgs {
		standard[p.ImportPath] = p.Standard
	}
	for _, p := range pkgs {
		from, ours := name(p.ImportPath)
		if !ours {
			continue
		}
		found = append(found, wrongImports(from, p)...)
		found = append(found, wrongDrivers(from, p)...)
		for _, dep := range p.Deps {
			if from == "root" && !standard[dep] {
				found = append(found, fmt.Sprintf("root depends on %s; it may use the standard library only", dep))
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func wrongImports(from string, p pkg) (found []string) {
	i := slices.IndexFunc(rules, func(r rule) bool { return matches(r.of, from) })
	if i < 0 {
		return []string{from + " has no row in rules"}
	}
	allow := rules[i].resolved(from)
	for _, imported := range p.Imports {
		to, ours := name(imported)
		allowed := slices.ContainsFunc(allow, func(pattern string) bool { return matches(pattern, to) })
		if ours && !allowed {
			found = append(found, fmt.Sprintf("%s imports %s; it may import of this module: %v", from, to, allow))
		}
	}
	return found
}

func wrongDrivers(from string, p pkg) (found []string) {
	if slices.ContainsFunc(aboveDrivers, func(pattern string) bool { return matches(pattern, from) }) {
		return nil
	}
	owners := map[string][]string{} // of a module
	for driver, modules := range drivers {
		for _, m := range modules {
			owners[m] = append(owners[m], driver)
		}
	}
	for m, of := range owners {
		if slices.Contains(of, from) {
			continue
		}
		for _, dep := range p.Deps {
			if dep == m || strings.HasPrefix(dep, m+"/") {
				found = append(found, fmt.Sprintf("%s drags in %s, which is for %s", from, m, strings.Join(slices.Sorted(slices.Values(of)), ", ")))
			}
		}
	}
	return found
}

func TestImports(t *testing.T) {
	for _, v := range violations(list(t)) {
		t.Error(v)
	}
}

// TestRulesNameRooms: no rule is for, or allows, what there is not.
func TestRulesNameRooms(t *testing.T) {
	var all []string
	for _, p := range list(t) {
		if n, ours := name(p.ImportPath); ours {
			all = append(all, n)
		}
	}
	for _, r := range rules {
		for _, pattern := range append(slices.Clone(r.allow), r.of) {
			if !strings.Contains(pattern, "SYSTEM") && !slices.ContainsFunc(all, func(n string) bool { return matches(pattern, n) }) {
				t.Errorf("the rule for %s names %s, and there is no such package", r.of, pattern)
			}
		}
	}
}

// list returns all packages of the module and all that they depend on.
func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Standard,Imports,Deps", module+"/...")
	cmd.Dir = top(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, stderr.Bytes())
	}
	var pkgs []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// top returns the directory of the module.
func top(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOMOD").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
}

// TestViolations breaks every rule once.
func TestViolations(t *testing.T) {
	ours := func(name string, imports, deps []string) pkg {
		return pkg{ImportPath: strings.TrimSuffix(module+"/"+name, "/"), Imports: imports, Deps: deps}
	}
	for _, tt := range []struct {
		name string
		pkg  pkg
		want string
	}{
		{"root uses a library", ours("", nil, []string{"golang.org/x/sys/unix"}), "root depends on golang.org/x/sys/unix"},
		{"root imports a store", ours("", []string{module + "/store/memstore"}, nil), "root imports store/memstore"},
		{"store imports a store", ours("store/boltstore", []string{module + "/store/memstore"}, nil), "store/boltstore imports store/memstore"},
		{"store imports the service", ours("store/memstore", []string{module + "/internal/service"}, nil), "store/memstore imports internal/service"},
		{"suite imports a store", ours("store/storetest", []string{module + "/store/memstore"}, nil), "store/storetest imports store/memstore"},
		{"protocol imports a protocol", ours("internal/api/httpapi", []string{module + "/internal/api/respapi"}, nil), "internal/api/httpapi imports internal/api/respapi"},
		{"protocol imports a store", ours("internal/api/respapi", []string{module + "/store/redisstore"}, nil), "internal/api/respapi imports store/redisstore"},
		{"service imports a protocol", ours("internal/service", []string{module + "/internal/api/httpapi"}, nil), "internal/service imports internal/api/httpapi"},
		{"server imports the client", ours("internal/server", []string{module + "/client"}, nil), "internal/server imports client"},
		{"server imports the suite", ours("internal/server", []string{module + "/store/storetest"}, nil), "internal/server imports store/storetest"},
		{"main imports the server", ours("cmd/hapax", []string{module + "/internal/server"}, nil), "cmd/hapax imports internal/server"},
		{"unknown package", ours("util", nil, nil), "util has no row"},
		{"driver drags in another", ours("store/zkstore", nil, []string{"go.etcd.io/etcd/client/v3"}), "store/zkstore drags in go.etcd.io/etcd"},
		{"routes drag in a driver", ours("compat/leaf/routes", nil, []string{"github.com/go-zookeeper/zk"}), "compat/leaf/routes drags in github.com/go-zookeeper/zk"},
		{"mount imports another system", ours("internal/mount/leaf", []string{module + "/compat/tinyid"}, nil), "internal/mount/leaf imports compat/tinyid"},
		{"mount imports the server", ours("internal/mount/leaf", []string{module + "/internal/server"}, nil), "internal/mount/leaf imports internal/server"},
		{"mounts name a system", ours("internal/mount", []string{module + "/compat/leaf"}, nil), "internal/mount imports compat/leaf"},
		{"compat imports the service", ours("compat/leaf", []string{module + "/internal/service"}, nil), "compat/leaf imports internal/service"},
		{"service drags in a driver", ours("internal/service", nil, []string{"go.etcd.io/bbolt"}), "internal/service drags in go.etcd.io/bbolt"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := violations([]pkg{tt.pkg})
			if len(got) != 1 || !strings.HasPrefix(got[0], tt.want) {
				t.Errorf("got %q, want one that begins with %q", got, tt.want)
			}
		})
	}
	allowed := []pkg{
		{ImportPath: "fmt", Standard: true},
		ours("", []string{"fmt"}, []string{"fmt"}),
		ours("store/boltstore", []string{module, "go.etcd.io/bbolt"}, []string{"go.etcd.io/bbolt", "go.etcd.io/bbolt/errors"}),
		ours("store/etcdstore", []string{module, module + "/store/internal/coord"}, []string{"go.etcd.io/etcd/client/v3"}),
		ours("compat/vesta/dubbo/registry", []string{module}, []string{"github.com/go-zookeeper/zk"}),
		ours("internal/server", []string{module + "/store/boltstore", module + "/internal/api/httpapi"}, slices.Concat(slices.Collect(maps.Values(drivers))...)),
	}
	if got := violations(allowed); len(got) != 0 {
		t.Errorf("refused what is allowed: %q", got)
	}
}

// maxLines is how long a file may be. Generated ones may be longer.
const maxLines = 600

func TestFileLength(t *testing.T) {
	for _, v := range longFiles(t, os.DirFS(top(t))) {
		t.Error(v)
	}
}

// longFiles returns one line for each Go file of the tree, nested modules
// included, that is too long.
func longFiles(t *testing.T, tree fs.FS) (found []string) {
	t.Helper()
	err := fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		data, err := fs.ReadFile(tree, path)
		if err != nil {
			return err
		}
		if n := bytes.Count(data, []byte("\n")); n > maxLines && !generated(data) {
			found = append(found, fmt.Sprintf("%s has %d lines; at most %d are allowed", path, n, maxLines))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// generated reports whether a file carries the mark of generated code before its
// package clause.
func generated(data []byte) bool {
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "// Code generated ") && strings.HasSuffix(line, " DO NOT EDIT.") {
			return true
		}
		if strings.HasPrefix(line, "package ") {
			return false
		}
	}
	return false
}

func TestLongFiles(t *testing.T) {
	body := "package p\n" + strings.Repeat("\n", maxLines)
	tree := fstest.MapFS{
		"long.go":           {Data: []byte(body)},
		"bench/long.go":     {Data: []byte(body)},
		"short.go":          {Data: []byte(body[:len(body)-1])},
		"gen.go":            {Data: []byte("// Code generated by x. DO NOT EDIT.\n" + body)},
		"text.md":           {Data: []byte(body)},
		"node_modules/x.go": {Data: []byte(body)},
	}
	if got := longFiles(t, tree); len(got) != 2 {
		t.Errorf("got %q, want long.go and bench/long.go", got)
	}
}
