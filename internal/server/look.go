package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/boltstore"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// A Finding is what Look has found of one part of a server that would be started.
type Finding struct {
	Verdict Verdict
	Part    string // "configuration", "data directory", "witness" or "store"
	Detail  string
}

// A Verdict says what a finding means for a start.
type Verdict string

// The verdicts.
const (
	VerdictOK      Verdict = "ok"
	VerdictChange  Verdict = "change"  // it starts, and changes this first
	VerdictBlocked Verdict = "blocked" // it does not start, or is granted nothing, while this is so
)

// Look finds out what a start with this configuration would change and what stands
// against it, and changes nothing. An error is one of the configuration.
func Look(ctx context.Context, c Config) ([]Finding, error) {
	if err := Check(ctx, c); err != nil {
		return nil, err
	}
	l := &looker{c: c, o: newOpener(c, slog.New(slog.DiscardHandler))}
	l.add(VerdictOK, "configuration", "it is good")
	used := l.directory()
	l.store(ctx, used)
	return l.found, nil
}

type looker struct {
	c     Config
	o     opener
	found []Finding
}

func (l *looker) add(v Verdict, part, detail string) {
	l.found = append(l.found, Finding{v, part, strings.ReplaceAll(detail, "\n", " ")})
}

// directory looks at the data directory and the witness, and reports whether a server
// runs there.
func (l *looker) directory() (used bool) {
	dir := l.c.Data
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		l.add(VerdictChange, "data directory", dir+" does not exist; it is made")
		return false
	case err == nil && !info.IsDir():
		err = errors.New("it is not a directory")
	}
	told := false
	if err == nil {
		told, err = checkDirFormat(dir)
	}
	if err != nil {
		l.add(VerdictBlocked, "data directory", fmt.Sprintf("%s: %v", dir, err))
		return false
	}
	if told {
		l.add(VerdictOK, "data directory", dir)
	} else {
		l.add(VerdictChange, "data directory", dir+" gets a file that says its format")
	}
	path := l.c.Witness
	if path == "" {
		path = filepath.Join(dir, witnessFile)
	}
	format, used, err := witness.LookFile(path)
	switch {
	case err != nil:
		l.add(VerdictBlocked, "witness", err.Error())
	case used:
		l.add(VerdictBlocked, "witness", path+" is in use: a server runs in this directory; stop it first")
	case format == "":
		l.add(VerdictChange, "witness", path+" does not exist; it is made")
	case format != witness.FormatOfFiles():
		l.add(VerdictChange, "witness", fmt.Sprintf("%s of format %s becomes one of format %s, and the store is raised to its marks", path, format, witness.FormatOfFiles()))
	default:
		l.add(VerdictOK, "witness", fmt.Sprintf("%s has format %s", path, format))
	}
	return used
}

// store looks at the store.
func (l *looker) store(ctx context.Context, used bool) {
	name := redact(l.o.url)
	if isVolatile(l.o.url) {
		l.add(VerdictOK, "store", name+" forgets everything when the server stops")
		return
	}
	if path := boltPath(l.o.url, l.o.data); path != "" {
		if used {
			return // the server that runs there has it open
		}
		change, err := boltstore.Look(ctx, path)
		l.stored("bolt:"+path, change, err)
		return
	}
	l.o.look = true
	store, err := l.o.open(ctx)
	if would, ok := errors.AsType[*driver.WouldChangeError](err); ok {
		l.stored(name, would.What, nil)
		return
	}
	if err != nil {
		l.stored(name, "", err)
		return
	}
	look, err := witness.LookAt(ctx, store)
	if err := errors.Join(err, store.Close()); err != nil {
		l.stored(name, "", err)
		return
	}
	change := ""
	if m, ok := store.(driver.Migrated); ok {
		change = m.Migrated()
	}
	if look.Format == 0 {
		change += "; " + fmt.Sprintf("its rows get format %d, and older versions are kept from it", witness.FormatOfRows())
	}
	if look.Before > len(look.Older) {
		change += fmt.Sprintf("; %d heartbeats of an older version, of nodes that have ended, are removed", look.Before-len(look.Older))
	}
	l.stored(name, strings.TrimPrefix(change, "; "), nil)
	for _, node := range look.Older {
		l.add(VerdictBlocked, "store", fmt.Sprintf("node %q of an older version runs on it; stop it first, since its grants cannot be guarded", node))
	}
	if look.Fence != "" {
		l.add(VerdictBlocked, "store", "a fence stands: "+look.Fence)
	}
	if n := len(look.Nodes); n > 0 {
		l.add(VerdictOK, "store", fmt.Sprintf("nodes that have not said that they ended: %s", strings.Join(look.Nodes, ", ")))
	}
}

func (l *looker) stored(name, change string, err error) {
	switch {
	case err != nil:
		l.add(VerdictBlocked, "store", name+": "+hapax.Message(err))
	case change != "":
		l.add(VerdictChange, "store", name+": "+change)
	default:
		l.add(VerdictOK, "store", name)
	}
}
