package deps

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rooms are the packages that the pictures of calls in docs/architecture.md name.
var rooms = map[string]string{
	"httpapi": "internal/api/httpapi", "service": "internal/service", "watch": "internal/service/watch", "ledger": "internal/ledger",
	"auth": "internal/service/auth", "define": "internal/service/define", "health": "internal/service/health",
	"hapax": ".", "strategy": "strategy", "batch": "internal/batch", "journal": "internal/journal",
	"server": "internal/server", "leasecache": "store/leasecache", "identity": "identity",
	"witness": "store/witness", "driver": "store/driver", "sqlstore": "store/sqlstore",
}

// A step is one line of a picture: a function and who calls it.
type step struct {
	room, function string // such as "hapax", "Segment.refill"
	as             string // the name by which the caller calls it
	depth          int
	again          bool  // the picture says that its room is entered again
	by             *step // nil: the first
}

// callsIn returns the pictures below the heading: in each, a line "ROOM FUNCTION", indented
// below the function that calls it. "NAME: FUNCTION" is called by another name.
func callsIn(text, heading string) ([][]*step, error) {
	_, text, found := strings.Cut(text, heading)
	if !found {
		return nil, fmt.Errorf("there is no %q", heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	var pictures [][]*step
	for i, block := range strings.Split(text, "```") {
		if i%2 == 0 {
			continue
		}
		var steps []*step
		for line := range strings.Lines(strings.TrimPrefix(block, "\n")) {
			line, note, _ := strings.Cut(strings.TrimRight(line, "\n"), "  #")
			room, rest, ok := strings.Cut(line, " ")
			function := strings.TrimLeft(rest, " ")
			if !ok || function == "" {
				return nil, fmt.Errorf("line %q: want ROOM FUNCTION", line)
			}
			s := &step{room: room, depth: len(line) - len(function), again: strings.HasPrefix(note, " again")}
			s.as, s.function, ok = strings.Cut(strings.TrimSpace(function), ": ")
			if !ok {
				s.function, s.as = s.as, s.as[strings.LastIndex(s.as, ".")+1:]
			}
			for j := len(steps) - 1; j >= 0 && s.by == nil; j-- {
				if steps[j].depth < s.depth {
					s.by = steps[j]
				}
			}
			if s.by == nil && len(steps) > 0 {
				return nil, fmt.Errorf("line %q: nobody calls it", line)
			}
			steps = append(steps, s)
		}
		pictures = append(pictures, steps)
	}
	return pictures, nil
}

// functions returns what each function of a directory's package mentions, by its name.
func functions(root, dir string) (map[string]map[string]bool, error) {
	all := map[string]map[string]bool{}
	files, err := fs.Glob(os.DirFS(filepath.Join(root, dir)), "*.go")
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, dir, name), nil, 0)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			mentions := map[string]bool{}
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					mentions[id.Name] = true
				}
				return true
			})
			all[nameOf(fn)] = mentions
		}
	}
	return all, err
}

// nameOf returns a function's name, after its receiver's type.
func nameOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	t := fn.Recv.List[0].Type
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	switch g := t.(type) {
	case *ast.IndexExpr:
		t = g.X
	case *ast.IndexListExpr:
		t = g.X
	}
	return t.(*ast.Ident).Name + "." + fn.Name.Name
}

// checkCalls returns what is not true of a picture: each function is there and is called by
// the one above it, directly or through one function of that one's package; and a way
// down that comes back to a package that it has left says so.
func checkCalls(root string, steps []*step) (wrong []string) {
	code := map[string]map[string]map[string]bool{}
	for _, s := range steps {
		if code[s.room] == nil {
			dir, ok := rooms[s.room]
			if !ok {
				return append(wrong, "there is no room "+s.room)
			}
			all, err := functions(root, dir)
			if err != nil {
				return append(wrong, err.Error())
			}
			code[s.room] = all
		}
		if code[s.room][s.function] == nil {
			wrong = append(wrong, fmt.Sprintf("%s has no function %s", s.room, s.function))
		}
		if s.by == nil {
			continue
		}
		if above := code[s.by.room]; !mentions(above, s.by.function, s.as) {
			wrong = append(wrong, fmt.Sprintf("%s.%s does not call %s.%s", s.by.room, s.by.function, s.room, s.function))
		}
		left, again := false, false
		for up := s.by; up != nil && s.by.room != s.room; up = up.by {
			left = left || up.room != s.room
			again = again || left && up.room == s.room
		}
		if again != s.again {
			wrong = append(wrong, fmt.Sprintf("%s.%s comes back to %s: %v; the picture says %v", s.by.room, s.by.function, s.room, again, s.again))
		}
	}
	return wrong
}

// mentions reports whether a function, or one of its package that it mentions, mentions a
// name.
func mentions(code map[string]map[string]bool, function, name string) bool {
	if code[function][name] {
		return true
	}
	for other, inner := range code {
		if code[function][other[strings.LastIndex(other, ".")+1:]] && inner[name] {
			return true
		}
	}
	return false
}

// The pictures of calls in docs/architecture.md are those of the code. Each function of another
// package stands there that waits, refuses, keeps or tells something; what only reads a value
// or checks a form does not.
func TestPicturesOfCalls(t *testing.T) {
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	pictures, err := callsIn(string(text), "\n## The way of a call\n")
	if err != nil || len(pictures) != len(lengths) {
		t.Fatalf("%d pictures, want %d; %v", len(pictures), len(lengths), err)
	}
	for i, steps := range pictures {
		for _, w := range checkCalls(root, steps) {
			t.Error(w)
		}
		// A way that needs more of them is to be made shorter, not drawn.
		if got, most := walk(steps), lengths[i].most; got.stays > most.stays || got.rooms > most.rooms || got.climbs > most.climbs {
			t.Errorf("%s: %+v, want at most %+v", lengths[i].of, got, most)
		}
	}
}

// A length is what a picture's way makes: stays in packages, the packages, and how often it comes
// back to one from below.
type length struct{ stays, rooms, climbs int }

// lengths are those of the pictures, in their order. What a picture shows "as above" is of another.
var lengths = []struct {
	of   string
	most length
}{
	{"a number in hand", length{3, 3, 0}},
	{"the first number of a new tag", length{42, 14, 3}},
	{"the opening of a tag", length{46, 14, 4}},
}

// walk returns the length of a picture's way.
func walk(steps []*step) (way length) {
	seen := map[string]bool{}
	for i, s := range steps {
		if i == 0 || steps[i-1].room != s.room {
			way.stays++
		}
		if s.again {
			way.climbs++
		}
		seen[s.room] = true
	}
	way.rooms = len(seen)
	return way
}

// A picture that is not true is found.
func TestWrongPictures(t *testing.T) {
	for _, tt := range []struct{ picture, want string }{
		{"service Service.Next\nhapax    Segment.TryNext", ""},
		{"service Service.Nxt", "service has no function Service.Nxt"},
		{"service Service.Worker\nhapax    Segment.TryNext", "service.Service.Worker does not call hapax.Segment.TryNext"},
		{"service Service.nextCold\nhapax    Segment.TryNext\nservice   Service.line", "comes back to service: true; the picture says false"},
		{"witness Guarded.Allocate\nbatch    Batch.Do\nbatch     Batch.makeTrip\nwitness    Trip: Guarded.allocateAll  # again", ""},
		{"service Service.Next\nhapax    Segment.TryNext  # again", "comes back to hapax: false; the picture says true"},
	} {
		pictures, err := callsIn("\n## P\n```\n"+tt.picture+"\n```\n", "\n## P\n")
		if err != nil || len(pictures) != 1 {
			t.Fatal(pictures, err)
		}
		got := strings.Join(checkCalls("../..", pictures[0]), "; ")
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%q: %q, want %q", tt.picture, got, tt.want)
		}
	}
}
