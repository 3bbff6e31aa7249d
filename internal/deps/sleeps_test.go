package deps

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sleepers are the tests that sleep by the real clock, each with its reason. A
// test waits for a state, with internal/patience: this list only gets shorter.
var sleepers = map[string]string{
	// By a clock that is virtual, which the rule cannot see: their callers are in bubbles.
	"store/witness/after":    virtual,
	"store/witness/within":   virtual,
	"store/witness/dress":    virtual,
	"store/witness/event":    virtual,
	"store/witness/restore":  virtual,
	"store/witness/harmless": virtual,
	"store/witness/allServe": virtual,
	"Next":                   virtual,
	"nextUnlocked":           virtual,
	// A part that is slow on purpose, in fakes and broken twins: it widens a race, which others decide.
	"Now": slow,
}

const (
	virtual = "by a virtual clock"
	slow    = "a part that is slow on purpose"
)

// harnesses are packages for tests that are not in test files.
var harnesses = []string{"internal/testservers/", "store/storetest/", "store/internal/coordtest/"}

// TestNoTestSleeps: time.Sleep stands in tests only inside a bubble of testing/synctest,
// or in a function that nothing calls but a bubble.
func TestNoTestSleeps(t *testing.T) {
	found := map[string]bool{}
	for dir, files := range testFiles(t, "../..") {
		for _, at := range realSleeps(files) {
			where := filepath.ToSlash(filepath.Join(dir, at.name))
			found[where] = true
			if sleepers[where] == "" {
				t.Errorf("%s: %s sleeps by the real clock: wait for a state with internal/patience; patience.Slow is for a part that is to be slow", at.at, where)
			}
		}
	}
	for where := range sleepers {
		if !found[where] {
			t.Errorf("%s does not sleep any more: take it from the list", where)
		}
	}
}

// The rule finds what sleeps, and lets bubbles be.
func TestSleepsAreFound(t *testing.T) {
	const source = `package p
func TestReal(t *testing.T) { time.Sleep(1) }
func TestLiteral(t *testing.T) { go func() { time.Sleep(1) }() }
func TestBubble(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(1); virtual() }) }
func TestTable(t *testing.T) {
	for _, c := range []struct{ do func() }{{do: func() { time.Sleep(1) }}} {
		synctest.Test(t, func(t *testing.T) { c.do() })
	}
}
func TestRealTable(t *testing.T) {
	for _, c := range []struct{ do func() }{{do: func() { time.Sleep(1) }}} {
		c.do()
	}
}
func TestNamed(t *testing.T) { synctest.Test(t, named) }
func TestOpened(t *testing.T) { open(t, func() { time.Sleep(1) }) }
func TestBoth(t *testing.T) { both(); synctest.Test(t, func(t *testing.T) { both() }) }
func named(t *testing.T) { time.Sleep(1) }
func virtual() { time.Sleep(1); deeper() }
func deeper() { time.Sleep(1) }
func both() { time.Sleep(1) }
func unused() { time.Sleep(1) }
func open(t *testing.T, f func()) { synctest.Test(t, func(t *testing.T) { f() }) }
`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p_test.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range realSleeps(parsed{set, []*ast.File{file}}) {
		names = append(names, s.name)
	}
	slices.Sort(names)
	if want := []string{"TestLiteral", "TestReal", "TestRealTable", "both", "unused"}; !slices.Equal(names, want) {
		t.Errorf("it finds %v; want %v", names, want)
	}
}

// parsed is the test files of a package.
type parsed struct {
	set   *token.FileSet
	files []*ast.File
}

func testFiles(t *testing.T, top string) map[string]parsed {
	t.Helper()
	all := map[string]parsed{}
	err := filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		if name := e.Name(); e.IsDir() && (name == "testdata" || name == "node_modules" || name != "." && name != ".." && strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		harness := slices.ContainsFunc(harnesses, func(h string) bool { return strings.HasPrefix(filepath.ToSlash(rel), h) })
		if e.IsDir() || !strings.HasSuffix(rel, "_test.go") && !(harness && strings.HasSuffix(rel, ".go")) {
			return nil
		}
		dir := filepath.Dir(rel)
		p := all[dir]
		if p.set == nil {
			p.set = token.NewFileSet()
		}
		file, err := parser.ParseFile(p.set, path, nil, parser.SkipObjectResolution)
		p.files = append(p.files, file)
		all[dir] = p
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A sleep is where one stands, and the function around it.
type sleep struct{ at, name string }

// realSleeps returns the calls of time.Sleep that may happen outside a bubble.
func realSleeps(p parsed) (found []sleep) {
	// Functions that open a bubble: what is given to them runs inside.
	opens := map[string]bool{"synctest.Test": true, "synctest.Run": true}
	eachFunc(p, func(f *ast.FuncDecl) {
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && callee(call) == "synctest.Test" {
				opens[f.Name.Name] = true
			}
			return true
		})
	})
	// Which functions are named outside a bubble by which others, and what sleeps there.
	named := map[string]map[string]bool{}
	sleeps := map[string][]sleep{}
	declared := map[string]bool{}
	eachFunc(p, func(f *ast.FuncDecl) { declared[f.Name.Name] = true })
	eachFunc(p, func(f *ast.FuncDecl) {
		name := f.Name.Name
		opener := false // its function literals, also those in tables, run in a bubble that it opens
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			opener = opener || ok && opens[callee(call)]
			return true
		})
		var look func(n ast.Node, inside bool)
		look = func(n ast.Node, inside bool) {
			ast.Inspect(n, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if opens[callee(n)] {
						look(n.Fun, inside)
						for _, a := range n.Args {
							look(a, true)
						}
						return false
					}
					if callee(n) == "time.Sleep" && !inside {
						sleeps[name] = append(sleeps[name], sleep{p.set.Position(n.Pos()).String(), name})
					}
				case *ast.FuncLit:
					if opener && !inside {
						look(n.Body, true)
						return false
					}
				case *ast.Ident:
					switch {
					case !declared[n.Name] || n == f.Name:
					case inside:
						add(named, n.Name, "")
					default:
						add(named, n.Name, name)
					}
				}
				return true
			})
		}
		look(f, false)
	})
	// A function is real if a test, or another real one, names it outside a bubble, or nothing names it.
	outside := map[string]bool{}
	for changed := true; changed; {
		changed = false
		for name := range declared {
			if outside[name] {
				continue
			}
			by := named[name]
			is := len(by) == 0 || slices.ContainsFunc(slices.Collect(maps.Keys(by)), func(caller string) bool { return outside[caller] })
			if is {
				outside[name], changed = true, true
			}
		}
	}
	for name, all := range sleeps {
		if outside[name] {
			found = append(found, all...)
		}
	}
	slices.SortFunc(found, func(a, b sleep) int { return strings.Compare(a.at, b.at) })
	return found
}

func add(named map[string]map[string]bool, name, by string) {
	if named[name] == nil {
		named[name] = map[string]bool{}
	}
	named[name][by] = true
}

func eachFunc(p parsed, do func(*ast.FuncDecl)) {
	for _, file := range p.files {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				do(f)
			}
		}
	}
}

// callee names what is called: f, or x.f.
func callee(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			if x.Name == "synctest" || x.Name == "time" {
				return fmt.Sprint(x.Name, ".", f.Sel.Name)
			}
		}
		return f.Sel.Name
	}
	return ""
}
