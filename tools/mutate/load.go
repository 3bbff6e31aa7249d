package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// A goPackage is a package with its types.
type goPackage struct {
	dir   string
	name  string
	files []string // names of its files, without tests
	tests []string
	text  map[string][]byte

	testText map[string]string // of each test

	fset   *token.FileSet
	syntax []*ast.File
	info   *types.Info
}

// load reads and checks the package in a directory.
func load(ctx context.Context, dir string) (*goPackage, error) {
	type listed struct {
		ImportPath, Dir, Export, Name      string
		GoFiles, TestGoFiles, XTestGoFiles []string
	}
	cmd := exec.CommandContext(ctx, "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,Name,GoFiles,TestGoFiles,XTestGoFiles", ".")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w", dir, err)
	}
	exports, last := map[string]string{}, listed{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var one listed
		if err := d.Decode(&one); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		exports[one.ImportPath], last = one.Export, one // the package itself comes last
	}
	p := &goPackage{
		dir: last.Dir, name: last.Name, files: last.GoFiles, tests: append(last.TestGoFiles, last.XTestGoFiles...), text: map[string][]byte{}, testText: map[string]string{},
		fset: token.NewFileSet(), info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}},
	}
	for _, name := range append(append([]string{}, p.files...), p.tests...) {
		if p.text[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	for _, name := range p.files {
		file, err := parser.ParseFile(p.fset, name, p.text[name], parser.ParseComments)
		if err != nil {
			return nil, err
		}
		p.syntax = append(p.syntax, file)
	}
	for _, name := range p.tests {
		file, err := parser.ParseFile(p.fset, name, p.text[name], parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				p.testText[f.Name.Name] = string(p.text[name][p.fset.Position(f.Pos()).Offset:p.fset.Position(f.End()).Offset])
			}
		}
	}
	imports := importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	conf := types.Config{Importer: imports}
	if _, err := conf.Check(last.ImportPath, p.fset, p.syntax, p.info); err != nil {
		return nil, err
	}
	return p, nil
}
