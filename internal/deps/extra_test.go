package deps

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// readers are the functions outside package define that have an Extra read, each with whose:
// once, where it comes in. Everything behind them gets a define.Tag.
var readers = map[string]string{
	"internal/service/watch Store.Definition": "a tag of the store",
	"internal/service definitions.settle":     "a new tag's, as a caller asks for it",
	"internal/service definitions.updateCode": "a changed tag's, as a caller asks for it",
	"internal/service Options.define":         "a tag's in the configuration",
	"internal/service lineReview.see":         "a row's in a list of all tags, of which most are not looked at",
	"internal/service floors.tagsOfPool":      "likewise",
	"internal/service floors.admitLine":       "a tag's, below what is watched",
	"internal/server start":                   "a grant's to a foreign system, which shares the ledger",
	"internal/service/define Tag.Now":         "a known tag's that is another now",
	"internal/service/define WithFloors":      "a definition's that is put together",
	"internal/service/define WithStrategy":    "likewise",
	"internal/service/define WithSource":      "likewise",
	"internal/service/define Shown":           "a tag's that is answered, printed or imported",
	"internal/moves raise":                    "an imported tag's, which is to say more",
	"internal/moves IsHeld":                   "likewise, of one that may be held",
	"internal/moves withdrawn":                "likewise, of one that is given back",
}

const definePath = module + "/internal/service/define"

// TestReadersOfExtra: what Tag.Extra says is decoded by one function, which those alone call
// that are listed; outside of the service it is shown.
func TestReadersOfExtra(t *testing.T) {
	found := map[string]bool{}
	for dir, files := range productFiles(t, top(t)) {
		for _, f := range files {
			for _, in := range callersOf(f, dir, "Read") {
				found[in] = true
				if readers[in] == "" {
					t.Errorf("%s has an Extra read: take the define.Tag that was read before, or list it with its reason", in)
				}
			}
			for _, in := range callersOf(f, dir, "parse") {
				if in != "internal/service/define Read" {
					t.Errorf("%s decodes an Extra: that is for Read", in)
				}
			}
			for _, in := range callersOf(f, dir, "Shown") {
				if strings.HasPrefix(in, "internal/service") {
					t.Errorf("%s has an Extra read to be shown: that is for those who answer and print", in)
				}
			}
		}
	}
	for in := range readers {
		if !found[in] {
			t.Errorf("%s has no Extra read any more: take it from the list", in)
		}
	}
}

// The rule finds who decodes, by whatever name the package goes, and nobody else.
func TestReadersAreFound(t *testing.T) {
	for _, tt := range []struct{ dir, source, want string }{
		{"a", `import "` + definePath + `"; func f() { define.Read(x) }`, "a f"},
		{"a", `import d "` + definePath + `"; func (s *S) f() { g(d.Read) }`, "a S.f"},
		{"a", `import "` + definePath + `"; var f = define.Read`, "a "},
		{"a", `import "other/define"; func f() { define.Read(x) }`, ""},
		{"a", `func f() { Read(x); s.Read() }; func Read() {}`, ""},
		{"internal/service/define", `func f() { g(Read(x).Says) }`, "internal/service/define f"},
		{"internal/service/define", `func Read() {}; func f() { rand.Read(x); define.Reader() }`, ""},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "p.go", "package p; "+tt.source, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(callersOf(f, tt.dir, "Read"), ", "); got != tt.want {
			t.Errorf("in %s, %s: found %q, want %q", tt.dir, tt.source, got, tt.want)
		}
	}
}

// callersOf returns the functions of a file that mention a function of package define, each
// after the directory.
func callersOf(f *ast.File, dir, function string) (found []string) {
	local := "" // define's name in the file; that of its own files is none
	for _, i := range f.Imports {
		if strings.Trim(i.Path.Value, `"`) == definePath {
			if local = "define"; i.Name != nil {
				local = i.Name.Name
			}
		}
	}
	own := definePath == module+"/"+dir
	if !own && local == "" {
		return nil
	}
	for _, d := range f.Decls {
		in, of := "", d.(ast.Node)
		if fn, ok := d.(*ast.FuncDecl); ok {
			if fn.Body == nil {
				continue
			}
			in, of = nameOf(fn), fn.Body
		}
		var look func(n ast.Node) bool
		look = func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); !own && ok && x.Name == local && n.Sel.Name == function {
					found = append(found, dir+" "+in)
				}
				ast.Inspect(n.X, look) // in define itself, a name behind a point is another's
				return false
			case *ast.Ident:
				if own && n.Name == function {
					found = append(found, dir+" "+in)
				}
			}
			return true
		}
		ast.Inspect(of, look)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// productFiles returns the files of the module that are no tests, by their directory.
func productFiles(t *testing.T, top string) map[string][]*ast.File {
	t.Helper()
	all := map[string][]*ast.File{}
	err := filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := e.Name(); e.IsDir() && path != top && (name == "testdata" || name == "node_modules" || strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		if e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(top, filepath.Dir(path))
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		dir := filepath.ToSlash(rel)
		all[dir] = append(all[dir], f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
