package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// The kinds of mutations.
var kinds = []string{
	"compare",  // < and <=, > and >=, == and != swapped
	"logic",    // && and || swapped
	"minmax",   // min and max swapped
	"negate",   // the condition of an if, or of a case without a tag
	"assign",   // to a field or an element: dropped
	"literal",  // a field of a composite literal: zero
	"return",   // one that is followed by something: removed
	"continue", // likewise
}

func isKind(name string) bool { return slices.Contains(kinds, name) }

// A mutant is the package with one change.
type mutant struct {
	id   int
	kind string
	file string
	line int
	fn   string // the function
	text string // what is changed
	to   string // what it becomes
	nth  int    // of those in the function that look the same
	hash string // of the function
}

// key names the mutant in lists, whatever line it has.
func (m mutant) key() string {
	key := m.fn + ": " + m.text + " => " + m.to
	if m.nth > 1 {
		key += fmt.Sprintf(" #%d", m.nth)
	}
	return key
}

func (m mutant) String() string { return fmt.Sprintf("%s:%d: %s", m.file, m.line, m.key()) }

// A source is the package's text with all mutants in it.
type source struct {
	files   map[string][]byte
	mutants []mutant // by ID
}

// An instrumenter writes mutants into one file. It only inserts text, and replaces
// operators, so that lines keep their numbers.
type instrumenter struct {
	pkg   *goPackage
	kinds string
	all   *[]mutant
	seen  map[string]int

	name   string
	text   []byte
	file   *token.File
	opens  []insertion // those at the same place in this order
	closes []insertion // those at the same place in the opposite order
	swaps  []insertion // of operators
	fn     string
	hash   string // of the function
}

type insertion struct {
	at, len int
	text    string
}

func instrument(p *goPackage, kinds string) (*source, error) {
	s := &source{files: map[string][]byte{}}
	s.mutants = []mutant{{}} // 0 is none
	seen := map[string]int{}
	for i, file := range p.syntax {
		in := &instrumenter{pkg: p, kinds: "," + kinds + ",", all: &s.mutants, seen: seen, name: p.files[i], text: p.text[p.files[i]], file: p.fset.File(file.Pos())}
		for _, d := range file.Decls {
			in.decl(d)
		}
		s.files[in.name] = in.apply()
	}
	s.files[helperFile] = []byte(fmt.Sprintf(helpers, p.name, len(s.mutants)))
	s.mutants = s.mutants[1:]
	return s, nil
}

func (in *instrumenter) decl(d ast.Decl) {
	in.fn, in.hash = "package", ""
	switch d := d.(type) {
	case *ast.GenDecl:
		if d.Tok == token.VAR {
			in.walk(d)
		}
	case *ast.FuncDecl:
		if d.Body == nil {
			return
		}
		in.fn, in.hash = d.Name.Name, hashOfCode(in.source(d))
		if d.Recv != nil {
			recv := in.source(d.Recv.List[0].Type)
			recv, _, _ = strings.Cut(strings.TrimPrefix(recv, "*"), "[")
			in.fn = recv + "." + in.fn
		}
		in.returns(d.Body.List, "", false, false) // before what stands in them, which ends first
		in.walk(d.Body)
	}
}

func (in *instrumenter) offset(pos token.Pos) int { return in.file.Offset(pos) }

func (in *instrumenter) source(n ast.Node) string {
	return string(in.text[in.offset(n.Pos()):in.offset(n.End())])
}

// one notes a mutant, and returns its ID; 0 where the kind is not wanted.
func (in *instrumenter) one(kind string, at ast.Node, text, to string) int {
	if !strings.Contains(in.kinds, ","+kind+",") {
		return 0
	}
	flat := strings.NewReplacer("\n", " ", "\t", " ")
	text, to = shorten(flat.Replace(text)), shorten(flat.Replace(to))
	m := mutant{id: len(*in.all), kind: kind, file: in.name, line: in.pkg.fset.Position(at.Pos()).Line, fn: in.fn, text: text, to: to, hash: in.hash}
	in.seen[m.key()]++
	m.nth = in.seen[m.key()]
	*in.all = append(*in.all, m)
	return m.id
}

func shorten(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 140 {
		s = string(r[:90]) + "…" + string(r[len(r)-45:])
	}
	return s
}

func (in *instrumenter) around(n ast.Node, before, after string) {
	in.opens = append(in.opens, insertion{in.offset(n.Pos()), 0, before})
	in.closes = append(in.closes, insertion{in.offset(n.End()), 0, after})
}

func (in *instrumenter) swap(pos token.Pos, op token.Token, text string) {
	in.swaps = append(in.swaps, insertion{in.offset(pos), len(op.String()), text})
}

// walk notes the mutants of expressions and assignments, the outer ones first.
func (in *instrumenter) walk(root ast.Node) {
	ast.Inspect(root, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok == token.VAR
		case *ast.IfStmt:
			in.condition(n.Cond)
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, c := range n.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						in.condition(e)
					}
				}
			}
		case *ast.BinaryExpr:
			in.binary(n)
		case *ast.CallExpr:
			in.call(n)
		case *ast.CompositeLit:
			in.literal(n)
		case *ast.FuncLit:
			in.returns(n.Body.List, "", false, false)
		case *ast.BlockStmt:
			in.assignments(n.List)
		case *ast.CaseClause:
			in.assignments(n.Body)
		case *ast.CommClause:
			in.assignments(n.Body)
		}
		if s, ok := n.(ast.Stmt); ok {
			in.fields(s)
		}
		return true
	})
}

var operators = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LAND: token.LOR, token.LOR: token.LAND,
}

// condition negates a condition; that of an equality is the comparison's mutant.
func (in *instrumenter) condition(e ast.Expr) {
	if b, ok := ast.Unparen(e).(*ast.BinaryExpr); ok && (b.Op == token.EQL || b.Op == token.NEQ) {
		return
	}
	if in.pkg.info.Types[e].Value != nil {
		return
	}
	text := in.source(e)
	if id := in.one("negate", e, text, "!("+text+")"); id > 0 {
		in.around(e, "((", fmt.Sprintf(") != mutantOn(%d))", id))
	}
}

func (in *instrumenter) binary(n *ast.BinaryExpr) {
	other, ok := operators[n.Op]
	if !ok || in.pkg.info.Types[n].Value != nil {
		return
	}
	kind := "compare"
	if n.Op == token.LAND || n.Op == token.LOR {
		kind = "logic"
	}
	x, y := in.source(n.X), in.source(n.Y)
	id := in.one(kind, n, x+" "+n.Op.String()+" "+y, x+" "+other.String()+" "+y)
	if id == 0 {
		return
	}
	m := fmt.Sprintf("mutantOn(%d)", id)
	switch n.Op {
	case token.LAND, token.LOR: // by De Morgan's law, so that both are evaluated as the mutant's operator does
		in.opens = append(in.opens, insertion{in.offset(n.Pos()), 0, "((("})
		in.closes = append(in.closes, insertion{in.offset(n.End()), 0, ") != " + m + ") != " + m + ")"})
		in.closes = append(in.closes, insertion{in.offset(n.X.End()), 0, ") != " + m})
		in.opens = append(in.opens, insertion{in.offset(n.Y.Pos()), 0, "("})
	case token.EQL, token.NEQ:
		in.around(n, "((", ") != "+m+")")
	default:
		name := map[token.Token]string{token.LSS: "Less", token.LEQ: "AtMost", token.GTR: "More", token.GEQ: "AtLeast"}[n.Op]
		in.around(n, fmt.Sprintf("mutant%s(%d, ", name, id), ")")
		in.swap(n.OpPos, n.Op, ",")
	}
}

func (in *instrumenter) call(n *ast.CallExpr) {
	name, ok := n.Fun.(*ast.Ident)
	if !ok || in.pkg.info.Types[n].Value != nil || len(n.Args) < 2 {
		return
	}
	if _, ok := in.pkg.info.Uses[name].(*types.Builtin); !ok {
		return
	}
	other := map[string]string{"min": "max", "max": "min"}[name.Name]
	if other == "" {
		return
	}
	text := in.source(n)
	id := in.one("minmax", n, text, other+strings.TrimPrefix(text, name.Name))
	if id == 0 {
		return
	}
	to := map[string]string{"min": "mutantMin", "max": "mutantMax"}[name.Name]
	in.swaps = append(in.swaps, insertion{in.offset(name.Pos()), len(name.Name), to})
	in.opens = append(in.opens, insertion{in.offset(n.Args[0].Pos()), 0, fmt.Sprintf("%d, ", id)})
}

// literal sets each field of a composite literal to zero.
func (in *instrumenter) literal(n *ast.CompositeLit) {
	t := in.pkg.info.Types[n].Type
	if t == nil {
		return
	}
	if p, ok := t.Underlying().(*types.Pointer); ok {
		t = p.Elem()
	}
	s, ok := t.Underlying().(*types.Struct)
	if !ok {
		return
	}
	for i, e := range n.Elts {
		name, value := "", e
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			name, value = in.source(kv.Key), kv.Value
		} else {
			name = s.Field(i).Name()
		}
		tv := in.pkg.info.Types[value]
		if tv.IsNil() || tv.Type == nil {
			continue
		}
		before := ""
		if tv.Value != nil { // it may be without a type of its own
			b, isBasic := tv.Type.(*types.Basic)
			if isZero(tv) || !isBasic && !in.isTyped(value) {
				continue
			}
			if isBasic {
				before = b.Name() + "("
			}
		}
		text := in.source(value)
		id := in.one("literal", value, name+": "+text, name+": zero")
		if id == 0 {
			continue
		}
		after := ")"
		if before != "" {
			after = "))"
		}
		in.around(value, fmt.Sprintf("mutantZero(%d, ", id)+before, after)
	}
}

// isTyped reports whether a constant has a type wherever it stands.
func (in *instrumenter) isTyped(e ast.Expr) bool {
	var name *ast.Ident
	switch e := e.(type) {
	case *ast.Ident:
		name = e
	case *ast.SelectorExpr:
		name = e.Sel
	default:
		return false
	}
	object := in.pkg.info.Uses[name]
	if object == nil {
		return false
	}
	b, ok := object.Type().(*types.Basic)
	return !ok || b.Info()&types.IsUntyped == 0
}

func isZero(tv types.TypeAndValue) bool {
	text := tv.Value.ExactString()
	return text == "0" || text == `""` || text == "false"
}

// assignments drops those to elements of maps and slices, and removals of such, statement
// by statement.
func (in *instrumenter) assignments(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || len(s.Lhs) != 1 {
				continue
			}
			if _, ok := s.Lhs[0].(*ast.IndexExpr); !ok {
				continue
			}
		case *ast.ExprStmt:
			call, ok := s.X.(*ast.CallExpr)
			if !ok || !slices.Contains([]string{"delete", "clear", "maps.Copy", "maps.DeleteFunc"}, in.source(call.Fun)) {
				continue
			}
		default:
			continue
		}
		if id := in.one("assign", s, in.source(s), "dropped"); id > 0 {
			in.around(s, fmt.Sprintf("if !mutantOn(%d) { ", id), " }")
		}
	}
}

// fields has assignments to fields go to a variable that nobody reads.
func (in *instrumenter) fields(s ast.Stmt) {
	var lhs []ast.Expr
	tok := ""
	switch s := s.(type) {
	case *ast.AssignStmt:
		if s.Tok == token.DEFINE {
			return
		}
		lhs, tok = s.Lhs, s.Tok.String()
	case *ast.IncDecStmt:
		lhs, tok = []ast.Expr{s.X}, s.Tok.String()
	default:
		return
	}
	for i, e := range lhs {
		if _, ok := e.(*ast.SelectorExpr); !ok {
			continue
		}
		text := in.source(e) + tok
		if a, ok := s.(*ast.AssignStmt); ok {
			text = in.source(e) + " " + tok + " "
			if len(a.Rhs) == len(a.Lhs) {
				text += in.source(a.Rhs[i])
			} else {
				text += in.source(a.Rhs[0])
			}
		}
		if id := in.one("assign", e, text, "dropped"); id > 0 {
			in.around(e, fmt.Sprintf("*mutantField(%d, &", id), ")")
		}
	}
}

// returns removes each return, and each continue, that something follows: what stands
// after it, or another round of a loop. A return that nothing follows either is the last
// thing that a function does, or has none to take its place. head is the condition that the
// statements stand under.
func (in *instrumenter) returns(list []ast.Stmt, head string, followed, loop bool) {
	for i, s := range list {
		in.returnsOf(s, head, followed || i < len(list)-1, loop)
	}
}

func (in *instrumenter) returnsOf(s ast.Stmt, head string, followed, loop bool) {
	switch s := s.(type) {
	case *ast.ReturnStmt:
		if followed {
			in.drop(s, head, "return")
		}
	case *ast.BranchStmt:
		if s.Tok == token.CONTINUE && s.Label == nil && loop && followed {
			in.drop(s, head, "continue")
		}
	case *ast.BlockStmt:
		in.returns(s.List, head, followed, loop)
	case *ast.IfStmt:
		head := string(in.text[in.offset(s.Pos()):in.offset(s.Body.Pos())])
		in.returns(s.Body.List, head, followed, loop)
		if s.Else != nil {
			in.returnsOf(s.Else, head+" else ", followed, loop)
		}
	case *ast.ForStmt:
		in.returns(s.Body.List, "", true, true)
	case *ast.RangeStmt:
		in.returns(s.Body.List, "", true, true)
	case *ast.SwitchStmt:
		in.clauses(s.Body, followed, loop)
	case *ast.TypeSwitchStmt:
		in.clauses(s.Body, followed, loop)
	case *ast.SelectStmt:
		in.clauses(s.Body, followed, loop)
	case *ast.LabeledStmt:
		in.returnsOf(s.Stmt, head, followed, loop)
	}
}

func (in *instrumenter) clauses(body *ast.BlockStmt, followed, loop bool) {
	for _, c := range body.List {
		switch c := c.(type) {
		case *ast.CaseClause:
			in.returns(c.Body, string(in.text[in.offset(c.Pos()):in.offset(c.Colon)])+": ", followed, loop)
		case *ast.CommClause:
			in.returns(c.Body, string(in.text[in.offset(c.Pos()):in.offset(c.Colon)])+": ", followed, loop)
		}
	}
}

func (in *instrumenter) drop(s ast.Stmt, head, kind string) {
	if id := in.one(kind, s, head+in.source(s), "removed"); id > 0 {
		in.around(s, fmt.Sprintf("if !mutantOn(%d) { ", id), " }")
	}
}

// apply returns the text of the file with all that was noted.
func (in *instrumenter) apply() []byte {
	slices.Reverse(in.closes)
	all := slices.Concat(in.closes, in.opens, in.swaps)
	slices.SortStableFunc(all, func(a, b insertion) int { return a.at - b.at })
	var out bytes.Buffer
	done := 0
	for _, i := range all {
		out.Write(in.text[done:i.at])
		out.WriteString(i.text)
		done = i.at + i.len
	}
	out.Write(in.text[done:])
	return out.Bytes()
}
