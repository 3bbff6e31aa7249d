package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/service"
	"github.com/hapax-id/hapax/store/driver"
	"github.com/hapax-id/hapax/store/witness"
)

// A Finding is the result of Look for one part of a server that would be started.
type Finding struct {
	Verdict Verdict
	Part    string // "configuration", "environment", "address", "data directory", "witness" or "store"
	Detail  string
	Code    hapax.Code // of the error, where what is blocked is the store or the witness
}

// partEnvironment is the part of Look about variables that look like settings.
const partEnvironment = "environment"

// A Verdict says what a finding means for a start.
type Verdict string

// The verdicts.
const (
	VerdictOK      Verdict = "ok"
	VerdictChange  Verdict = "change"  // it starts, and changes this first
	VerdictBlocked Verdict = "blocked" // it does not start, or is granted nothing, while this is so
)

// Look finds out what a start with this configuration would change and what stands
// against it, and changes nothing. It does not look at the stores of foreign systems. An
// error is one of the configuration.
func Look(ctx context.Context, c Config) ([]Finding, error) {
	if err := Check(ctx, c); err != nil {
		return nil, err
	}
	l := &looker{c: c, o: newOpener(c, slog.New(slog.DiscardHandler))}
	l.add(VerdictOK, "configuration", "it is good")
	if unknown := unknownVariables(os.Environ()); len(unknown) > 0 {
		l.add(VerdictOK, partEnvironment, "there are no such settings: "+strings.Join(unknown, ", ")+"; the variables have no effect: correct or unset them")
	}
	if certs, err := newCertificates(c, l.o.log); err == nil && certs != nil {
		if ends := certs.current.Load().expires; time.Now().After(ends) {
			l.add(VerdictOK, "certificate", fmt.Sprintf("tls_cert %s ended at %s: clients refuse it; put a new one in place, which needs no restart", c.TLSCert, ends.UTC().Format(time.RFC3339)))
		}
	}
	if err := l.addresses(ctx); err != nil {
		return nil, err
	}
	// A witness elsewhere knows of a store even where the directory is new.
	if l.directory() || l.c.Witness != "" {
		l.witnessAt(l.witnessPath())
	}
	l.store(ctx)
	return l.found, nil
}

type looker struct {
	c       Config
	o       opener
	witness witness.LookedFile
	found   []Finding
}

func (l *looker) add(v Verdict, part, detail string) {
	l.found = append(l.found, Finding{Verdict: v, Part: part, Detail: strings.ReplaceAll(detail, "\n", " ")})
}

// addresses listens where the server would, for a moment. An error is one of the
// configuration.
func (l *looker) addresses(ctx context.Context) error {
	for _, e := range slices.Concat(l.c.endpoints(), l.c.mountEndpoints()) {
		if e.address == "" && e.optional {
			continue
		}
		listener, err := listen(ctx, l.c, e)
		switch {
		case errors.Is(err, hapax.ErrInvalidArgument):
			return err
		case err != nil:
			l.add(VerdictBlocked, "address", err.Error())
		default:
			defer listener.Close() // the next one must not have the same
			l.add(VerdictOK, "address", e.address)
		}
	}
	return nil
}

// directory looks at the data directory, and reports whether it is there and can be used.
func (l *looker) directory() bool {
	dir := l.c.Data
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := mayMakeDir(dir); err != nil {
			l.add(VerdictBlocked, "data directory", fmt.Sprintf("%s cannot be made: %v", dir, err))
		} else {
			l.add(VerdictChange, "data directory", dir+" does not exist; it is made")
		}
		return false
	case err == nil && !info.IsDir():
		err = errors.New("it is not a directory")
	}
	told := false
	if err == nil {
		err = mayWrite(dir)
	}
	if err == nil {
		_, err = filesToClose(dir)
	}
	if err == nil {
		told, err = checkDirFormat(dir)
	}
	if err == nil {
		_, err = instanceIn(filepath.Join(dir, instanceFile))
	}
	switch {
	case err != nil:
		l.add(VerdictBlocked, "data directory", fmt.Sprintf("%s: %s", dir, hapax.Message(err)))
	case told:
		l.add(VerdictOK, "data directory", dir)
	default:
		l.add(VerdictChange, "data directory", dir+" gets a file that says its format")
	}
	return err == nil
}

// mayMakeDir returns why a directory that does not exist could not be made.
func mayMakeDir(path string) error {
	for {
		path = filepath.Dir(path)
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path):
			continue
		case err != nil:
			return err
		case !info.IsDir():
			return fmt.Errorf("%s is not a directory", path)
		}
		return mayWrite(path)
	}
}

func (l *looker) witnessPath() string {
	return cmp.Or(l.c.Witness, filepath.Join(l.c.Data, witnessFile))
}

// witnessAt looks at the witness.
func (l *looker) witnessAt(path string) {
	found, err := witness.LookFile(path)
	l.witness = found
	switch format := found.Format; {
	case err != nil:
		l.add(VerdictBlocked, "witness", hapax.Message(err))
		l.found[len(l.found)-1].Code = hapax.CodeOf(err)
	case found.Used:
		l.add(VerdictBlocked, "witness", path+" is in use: a server runs in this directory; stop it first")
	case format == "":
		l.add(VerdictChange, "witness", path+" does not exist; it is made")
	default:
		l.add(VerdictOK, "witness", fmt.Sprintf("%s has format %s", path, format))
	}
}

// store looks at the store.
func (l *looker) store(ctx context.Context) {
	name := redact(l.o.url)
	if isVolatile(l.o.url) {
		l.add(VerdictOK, "store", name+" forgets everything when the server stops")
		return
	}
	if path := boltPath(l.o.url, l.o.data); path != "" {
		if name = "bolt:" + path; l.witness.Used {
			return // the server that runs there has it open
		}
		if dir := filepath.Dir(path); dir != filepath.Clean(l.o.data) {
			if _, err := os.Stat(dir); err != nil { // only the data directory is made
				l.stored(name, "", fmt.Errorf("%w: make the directory %s first: %w", hapax.ErrStoreUnavailable, dir, bare(err)))
				return
			}
		}
	}
	l.o.look = true
	store, err := l.o.open(ctx)
	if would, ok := errors.AsType[*driver.WouldChangeError](err); ok {
		if would.What == driver.NewStore && l.witness.Store != "" {
			err = fmt.Errorf("%w: this directory knows the store %q, and there is none: it was wiped, or another one is named; check the URL", hapax.ErrStoreReplaced, l.witness.Store)
			l.stored(name, "", err)
			return
		}
		l.stored(name, would.What, nil)
		return
	}
	if err != nil {
		l.stored(name, "", err)
		return
	}
	look, err := witness.LookAt(ctx, store, l.witnessPath())
	pools, poolsErr := store.Pools(ctx)
	if err == nil {
		err = poolsErr
	}
	if err == nil {
		err = service.Options{Pools: l.o.pools}.CheckPools(pools)
	}
	if err := errors.Join(err, store.Close()); err != nil {
		l.stored(name, "", err)
		return
	}
	change := ""
	if look.Format == 0 {
		change = fmt.Sprintf("its rows get format %d", witness.FormatOfRows())
	}
	l.stored(name, change, look.Behind)
	if look.Fence != "" {
		l.add(VerdictBlocked, "store", "a fence stands: "+look.Fence)
		l.found[len(l.found)-1].Code = hapax.ErrFenced.Code()
	}
	if n := len(look.Nodes); n > 0 {
		l.add(VerdictOK, "store", fmt.Sprintf("nodes that have not said that they ended: %s", strings.Join(look.Nodes, ", ")))
	}
}

func (l *looker) stored(name, change string, err error) {
	switch {
	case err != nil:
		l.add(VerdictBlocked, "store", name+": "+hapax.Message(err))
		l.found[len(l.found)-1].Code = hapax.CodeOf(err)
	case change != "":
		l.add(VerdictChange, "store", name+": "+change)
	default:
		l.add(VerdictOK, "store", name)
	}
}
