package e2e

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/hapax-id/hapax/internal/patience"
	"github.com/hapax-id/hapax/internal/testservers"
)

// snippets returns the first block of code of each section of a document.
func snippets(t *testing.T, path string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		if block := regexp.MustCompile("(?s)```[a-z]+\n(.*?)```").FindStringSubmatch(body); block != nil {
			found[title] = block[1]
		}
	}
	return found
}

// interpreters tell how to run the snippet of a section; nil: it is not run. They
// return a command that reads it from a file, and where to run it.
var interpreters = map[string]func(t *testing.T) (dir string, command []string){
	"curl":      shell("curl"),
	"redis-cli": shell("redis-cli"),
	"Python, with the client": func(t *testing.T) (string, []string) {
		python := testservers.Require(t, []string{"python3"})
		home, err := filepath.Abs("../../clients/python")
		if err != nil {
			t.Fatal(err)
		}
		return "", []string{"env", "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=" + home, python}
	},
	"Node.js, with the client": func(t *testing.T) (string, []string) {
		// There, the package finds itself by its name.
		return "../../clients/typescript", []string{testservers.Require(t, []string{"node"}), "-e", evalFile}
	},
	"PHP, with the client": func(t *testing.T) (string, []string) {
		return "../..", []string{testservers.Require(t, []string{"php"})}
	},
	"Python, with redis-py": func(t *testing.T) (string, []string) {
		for _, python := range []string{"/usr/bin/python3", "python3"} {
			if exec.Command(python, "-c", "import redis").Run() == nil {
				return "", []string{python}
			}
		}
		testservers.Missing(t, "Python's redis is not installed")
		return "", nil
	},
	"Node.js":                  nodeRun,
	"Node.js, with node-redis": nodeRun,
	"Node.js, with grpc-js":    nodeRun,
	"Python, with gRPC": func(t *testing.T) (string, []string) {
		protoc, plugin := testservers.Require(t, []string{"protoc"}), testservers.Require(t, []string{"grpc_python_plugin"})
		if exec.Command("/usr/bin/python3", "-c", "import grpc").Run() != nil {
			testservers.Missing(t, "Python's grpc is not installed")
		}
		dir := t.TempDir()
		out, err := exec.Command(protoc, "-I", "../../proto", "--python_out="+dir, "--grpc_out="+dir, "--plugin=protoc-gen-grpc="+plugin,
			"hapax/v1/types.proto", "hapax/v1/issue.proto").CombinedOutput()
		if err != nil {
			t.Fatalf("protoc: %v: %s", err, out)
		}
		return dir, []string{"env", "PYTHONPATH=" + dir, "/usr/bin/python3"}
	},
	"PHP":  interpreter("php"),
	"Ruby": interpreter("ruby"),
	"C": func(t *testing.T) (string, []string) {
		testservers.Require(t, []string{"gcc"})
		if _, err := os.Stat("/usr/include/hiredis/hiredis.h"); err != nil {
			testservers.Missing(t, "libhiredis-dev is not installed")
		}
		return t.TempDir(), []string{"sh", "-ec", `gcc -x c -o snippet "$0" -lhiredis && ./snippet`}
	},
	"Go, leasing":       goRun,
	"Go, with go-redis": goRun,
	"Go, with grpc-go":  goRun,
	"Java, with the client": func(t *testing.T) (string, []string) {
		return t.TempDir(), []string{"sh", "-ec", `{ echo "import id.hapax.client.*; class Snippet { public static void main(String[] a) throws Exception {"
			cat "$0"; echo "}}"; } > Snippet.java && java -cp "` + javaClasses(t) + `" Snippet.java`}
	},
	"Rust, with the client": nil, // its own check compiles the same lines
	"Java, with Jedis":      nil,
	"grpcurl":               nil,
}

// evalFile is a program for Node.js that runs a file where its packages are not.
const evalFile = `eval(require("fs").readFileSync(process.argv[1], "utf8"))`

func shell(tool string) func(t *testing.T) (string, []string) {
	return func(t *testing.T) (string, []string) {
		testservers.Require(t, []string{tool})
		return "", []string{"sh", "-e"}
	}
}

// nodeRun runs JavaScript where the clients are installed.
func nodeRun(t *testing.T) (string, []string) {
	bin := testservers.Require(t, []string{"node"})
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	modules := filepath.Join(root, "internal", "api", "respapi", "testdata", "ioredis")
	if _, err := os.Stat(filepath.Join(modules, "node_modules", "@grpc")); err != nil {
		testservers.Missing(t, "the clients are not installed: run npm ci in internal/api/respapi/testdata/ioredis")
	}
	return modules, []string{"env", "PROTO=" + filepath.Join(root, "proto"), bin, "-e", evalFile}
}

func interpreter(tool string) func(t *testing.T) (string, []string) {
	return func(t *testing.T) (string, []string) { return "", []string{testservers.Require(t, []string{tool})} }
}

func goRun(*testing.T) (string, []string) { return "", []string{"go", "run"} }

// Every snippet of the page does what it says, and none gets a number that another
// got.
func TestFromYourLanguageInterop(t *testing.T) {
	patience.Interop(t, "programs in nine languages")
	t.Parallel()
	s := serve(t, t.TempDir(), []string{"HAPAX_MAX_WAIT=1m"}) // the machine may be busy
	a := s.addresses()
	local := strings.NewReplacer("127.0.0.1:8080", strings.TrimPrefix(a.HTTP, "http://"), "127.0.0.1:6380", a.RESP, "6380", port(t, a.RESP))
	issued := map[int64]string{}
	found := snippets(t, filepath.Join("..", "..", "docs", "from-your-language.md"))
	for title := range interpreters {
		if _, ok := found[title]; !ok {
			t.Errorf("the page has no section %q with a snippet", title)
		}
	}
	for title, snippet := range found {
		t.Run(title, func(t *testing.T) {
			interpreter, known := interpreters[title]
			if !known {
				t.Fatal("this test does not know how to run it")
			}
			if interpreter == nil {
				return
			}
			dir, command := interpreter(t)
			text := local.Replace(snippet)
			if text == snippet {
				t.Fatal("it has no address")
			}
			numbers := runSnippet(t, dir, command, text)
			if len(numbers) != 2 || numbers[0] < 1 || numbers[0] > 1_000_000 || numbers[1] < 1<<53 {
				t.Fatalf("got %v, want a number of orders and a snowflake", numbers)
			}
			for _, n := range numbers {
				if other, taken := issued[n]; taken {
					t.Errorf("%d was printed by %q, too", n, other)
				}
				issued[n] = title
			}
		})
	}
}

func port(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// runSnippet runs a snippet from a file and returns the numbers that it printed,
// one a line and nothing else.
func runSnippet(t *testing.T, dir string, command []string, text string) (numbers []int64) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "main.go") // a name that only go run looks at
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience.Long) // go run compiles
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], append(command[1:], file)...)
	cmd.Dir = dir
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd, err, out, errs.String())
	}
	for line := range strings.Lines(string(out)) {
		n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			t.Fatalf("it printed %q", out)
		}
		numbers = append(numbers, n)
	}
	return numbers
}
