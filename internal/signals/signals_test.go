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
						if !hasCode(n) && !slices.Contains(ofTheirOwn, text) {
							t.Errorf("%s: the line %q has an error without its code, so that it may lead elsewhere than answers with the code", files.Position(n.Pos()), text)
						}
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

// What an operator is sent to follows from the code of the error, whichever line, alarm or
// answer tells of it; a line or an alarm without one, or with a code that is a driver's
// own, has an entry itself.
func TestOneTroubleOneEntry(t *testing.T) {
	for _, trouble := range Troubles() {
		for _, code := range trouble.Codes {
			want := runbook + trouble.ID
			for message := range byMessage {
				if got := SeeLine(message, code); got != want {
					t.Errorf("%q with the code %s leads to %s, not to %s", message, code, got, want)
				}
			}
			for alarm := range byAlarm {
				if got := SeeCause(alarm, code); got != want {
					t.Errorf("the alarm %s with the code %s leads to %s, not to %s", alarm, code, got, want)
				}
			}
		}
	}
	for _, code := range []string{"", "not_durable"} {
		for message, id := range byMessage {
			if got := SeeLine(message, code); got != runbook+id {
				t.Errorf("%q with the code %q leads to %s, not to %s", message, code, got, id)
			}
		}
		for alarm, id := range byAlarm {
			if got := SeeCause(alarm, code); got != runbook+id {
				t.Errorf("the alarm %s with the code %q leads to %s, not to %s", alarm, code, got, id)
			}
		}
	}
	if got := CheckOf(SeeCode("store_unsafe")); got != "hapax doctor" {
		t.Errorf("the check of an unsafe store is %q", got)
	}
	if got := CheckOf(""); got != "" {
		t.Errorf("the check of nothing is %q", got)
	}
}

// hasCode reports whether a call that warns of an error says its code.
func hasCode(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != "Warn" && sel.Sel.Name != "Error" {
		return true
	}
	keys := map[string]bool{}
	for _, arg := range call.Args {
		if lit, ok := arg.(*ast.BasicLit); ok {
			key, _ := strconv.Unquote(lit.Value)
			keys[key] = true
		}
	}
	return keys["code"] || !keys["err"]
}

// ofTheirOwn are the messages about an error that is not their trouble: what the line tells
// of is left to do when the error is over, or the error is no part of hapax.
var ofTheirOwn = []string{
	"the ledger of grants cannot be opened; grants are not recorded until the next start", "the ", // ledger and history
	"the last records of the ", "the data directory's disk is full: commands do not find this server by --data until it is started again",
	"an alarm could not be delivered", "traces or metrics could not be sent", "the certificates cannot be used; those in use stay",
	"what is held could not be given back: the numbers granted are lost, and a worker ID is free when its granted time is over",
	"the lines of a deleted tag are still there; nothing is issued from them",
	"segments cannot be noted in the collection now, and will be later; numbers are issued as before", "the last segments are not noted in the collection",
	"a connection could not be accepted",
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
