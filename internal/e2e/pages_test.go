package e2e

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hapax-id/hapax/internal/testservers"
)

// A commandBlock is a block of commands on a page.
type commandBlock struct {
	text string
	why  string // it is not run, as the comment before it says; empty: it is
}

var commandForm = regexp.MustCompile("(?m)(?:^[ ]*<!-- not run: (.+) -->\n)?^[ ]*```(?:sh|bash|console)\n((?s:.*?))^[ ]*```$")

// commands returns the blocks of commands of a page, in their order.
func commands(t *testing.T, path string) (found []commandBlock) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range commandForm.FindAllStringSubmatch(string(text), -1) {
		found = append(found, commandBlock{text: m[2], why: m[1]})
	}
	return found
}

// walked has the pages whose commands a test of their own runs, and how many blocks it
// runs.
var walked = map[string]struct {
	by     func(*testing.T)
	blocks int
}{
	"AGENTS.md":                         {TestAgentsPage, 1},
	"README.md":                         {TestReadme, 4},
	"clients/java/README.md":            {TestJavaPagesInterop, 1},
	"docs/coming-from-leaf.md":          {TestForeignTables, 10},
	"docs/coming-from-redis-mongo.md":   {TestImportRedisMongo, 3},
	"docs/coming-from-sequences.md":     {TestSequencesPage, 6},
	"docs/coming-from-tinyid.md":        {TestForeignTables, 8},
	"docs/coming-from-uid-generator.md": {TestSuccessorPage, 1},
	"docs/coming-from-uuids.md":         {TestUUIDsPage, 4},
	"docs/concepts.md":                  {TestConceptsPage, 5},
	"docs/from-your-language.md":        {TestFromYourLanguageInterop, 2},
	"docs/java.md":                      {TestJavaPagesInterop, 1},
	"docs/redis-and-mongodb.md":         {TestRedisAndMongoDBPage, 2},
	"docs/strategies-and-plugins.md":    {TestPluginsPage, 1},
	"docs/tour.md":                      {TestTour, 4},
	"docs/tracing.md":                   {TestTracingPage, 7},
}

// Every block of commands on every page is run by the test of the page, or here beside a
// server in a fresh directory, or says in a comment why it is not.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"*.md", "docs/*.md", "examples/*/README.md", "clients/*/README.md"} {
		pages, err := filepath.Glob(filepath.Join("..", "..", pattern))
		if err != nil || len(pages) == 0 {
			t.Fatalf("%s: %v, %v", pattern, pages, err)
		}
		for _, file := range pages {
			page, err := filepath.Rel(filepath.Join("..", ".."), file)
			if err != nil {
				t.Fatal(err)
			}
			page = filepath.ToSlash(page)
			var run []string
			for _, block := range commands(t, page) {
				switch {
				case block.why == "":
					run = append(run, block.text)
				case len(strings.Fields(block.why)) < 4:
					t.Errorf("%s: %q is no reason not to run\n%s", page, block.why, block.text)
				}
			}
			if own, ok := walked[page]; ok {
				if len(run) != own.blocks {
					by := runtime.FuncForPC(reflect.ValueOf(own.by).Pointer()).Name()
					t.Errorf("%s has %d blocks of commands to run, and %s runs %d: extend it, or say in the page why one is not run (<!-- not run: ... -->)", page, len(run), by, own.blocks)
				}
				continue
			}
			if len(run) > 0 {
				t.Run(page, func(t *testing.T) { walk(t, run) })
			}
		}
	}
}

// walk types the blocks of a page into one shell, and checks that they print what they
// say.
func walk(t *testing.T, blocks []string) {
	script := strings.Join(blocks, "\n")
	for _, tool := range []string{"curl", "redis-cli"} {
		if strings.Contains(script, tool) {
			testservers.Require(t, []string{tool})
		}
	}
	dir := t.TempDir()
	then := time.Until(time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)) // when the pages' codes were issued
	s := serve(t, dir, []string{"HAPAX_DATA=" + filepath.Join(dir, "hapax-data"), "HAPAX_TEST_CLOCK_OFFSET=" + then.Round(time.Second).String()})
	a := s.addresses()
	clone, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	local := strings.NewReplacer("http://127.0.0.1:8080", a.HTTP, "localhost:8080", strings.TrimPrefix(a.HTTP, "http://"), "-p 6380", "-p "+port(t, a.RESP),
		"./hapax ", "hapax ", "cd examples/", "cd "+clone+"/examples/")
	env := []string{"PATH=" + filepath.Dir(binary) + ":" + os.Getenv("PATH"), "HAPAX_SERVER=" + a.HTTP}
	script = "hapax next snowflake > number-before\n" + script // the server is in use
	printsInOrder(t, shellSession(t, dir, env, local.Replace(script))+"\n", promised(script))
}
