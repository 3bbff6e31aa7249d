package signals

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Every entry says what it means and what to do, under an anchor of its own.
func TestEntriesAreWhole(t *testing.T) {
	ids := map[string]bool{}
	for _, trouble := range Troubles() {
		if ids[trouble.ID] {
			t.Errorf("two entries have the anchor %s", trouble.ID)
		}
		ids[trouble.ID] = true
		for part, text := range map[string]string{"ID": trouble.ID, "Title": trouble.Title, "Means": trouble.Means, "Cause": trouble.Cause, "Do": trouble.Do, "Not": trouble.Not} {
			if text == "" {
				t.Errorf("%s lacks %s", trouble.ID, part)
			}
		}
		if len(trouble.Codes)+len(trouble.Messages)+len(trouble.Alarms)+len(trouble.Alerts) == 0 {
			t.Errorf("%s has no name by which anybody would look for it", trouble.ID)
		}
	}
}

// composed are the messages that the code puts together, by the literal in it.
var composed = []string{"the ", " cannot be written; records are kept in memory, and lost where there are too many", " can be written again", "the last records of the ", " are lost: the disk is full", " request"}

// loggers are the directories of the server's own code: what others log is theirs.
var loggers = []string{"internal/api", "internal/server", "internal/service", "internal/mount", "store", "strategy", "compat"}

// Every message that the code logs has an entry, and every entry's message is logged.
func TestMessagesHaveEntries(t *testing.T) {
	logged, literals := map[string]token.Position{}, map[string]bool{}
	files := token.NewFileSet()
	for _, dir := range loggers {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "storetest") || strings.Contains(path, "coordtest") {
				return err
			}
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.BasicLit:
					if text, err := strconv.Unquote(n.Value); err == nil {
						literals[text] = true
					}
				case *ast.CallExpr:
					if text, ok := messageOf(n); ok {
						logged[text] = files.Position(n.Pos())
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(logged) < 50 {
		t.Errorf("only %d messages were found", len(logged))
	}
	for text, at := range logged {
		if SeeMessage(text) == "" && !slices.Contains(composed, text) {
			t.Errorf("%s: the message %q has no entry in package signals", at, text)
		}
	}
	for message := range byMessage {
		isComposed := slices.ContainsFunc(composed, func(part string) bool { return part != "the " && strings.Contains(message, part) })
		if !literals[message] && !isComposed {
			t.Errorf("nothing in the code says %q", message)
		}
	}
}

// A line that only says that there was an error is told of by the error's code.
func TestLinesOfErrors(t *testing.T) {
	for _, message := range byError {
		if byMessage[message] == "" {
			t.Errorf("%q has no entry", message)
		}
	}
	for _, tt := range []struct{ message, code, want string }{
		{"a number was refused", "plugin_failed", "#plugin-fails"},
		{"a number was refused", "store_unavailable", "#store-lost"},
		{"a number was refused", "limit_exceeded", "#quota"},
		{"a number was refused", "nobody's", "#quota"},
		{"request failed", "internal", "#internal"},
		{"the store does not answer", "plugin_failed", "#store-lost"},
	} {
		if got := SeeLine(tt.message, tt.code); !strings.HasSuffix(got, tt.want) {
			t.Errorf("%q with the code %s: %q, want %q", tt.message, tt.code, got, tt.want)
		}
	}
}

// messageOf returns the message of a call that logs, and of one that is written to the
// audit log.
func messageOf(call *ast.CallExpr) (string, bool) {
	name := ""
	receiver := ""
	if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
		name = sel.Sel.Name
		switch x := sel.X.(type) {
		case *ast.Ident:
			receiver = x.Name
		case *ast.SelectorExpr:
			receiver = x.Sel.Name
		}
	}
	at := 0
	switch name {
	case "Warn", "Error", "Info", "Debug":
		if !slices.Contains([]string{"log", "Log", "Logger", "logger", "slog"}, receiver) {
			return "", false
		}
	case "InfoContext", "DebugContext", "WarnContext", "warn", "Attempted":
		at = 1
	default:
		return "", false
	}
	if len(call.Args) <= at {
		return "", false
	}
	var text string
	ast.Inspect(call.Args[at], func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && text == "" {
			text, _ = strconv.Unquote(lit.Value)
		}
		return true
	})
	if name == "warn" && receiver != "log" {
		return "", false // a driver's warning, which is told as a detail
	}
	return text, text != ""
}
