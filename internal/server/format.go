package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hapax-id/hapax"
)

// formatFile lists the formats of those files of a data directory that do not name their own, one a
// line, and the version that wrote the list.
const formatFile = "format"

// dirFormats are the formats that this version writes, and the highest that it knows: of
// the directory's own files, of the ledger and of the history.
var dirFormats = []struct {
	name string
	now  int
}{{"data", 1}, {"ledger", 1}, {"history", 1}}

// maxFormat bounds the file with the formats.
const maxFormat = 4096

// checkDirFormat refuses a data directory that a newer version has written. It reports
// whether the directory says what it is.
func checkDirFormat(dir string) (told bool, err error) {
	path := filepath.Join(dir, formatFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	by := "another version"
	found := map[string]int{}
	for line := range strings.Lines(string(raw[:min(len(raw), maxFormat)])) {
		var name string
		var n int
		if v, ok := strings.CutPrefix(line, "written by hapax "); ok {
			by = "hapax " + strings.TrimSpace(v)
		} else if _, err := fmt.Sscanf(line, "%s %d", &name, &n); err == nil {
			found[name] = n
		}
	}
	if len(found) == 0 {
		return true, fmt.Errorf("%w: %s names no format; remove the file if no newer version than this one has used the directory", hapax.ErrStoreCorrupt, path)
	}
	for _, f := range dirFormats {
		n := found[f.name]
		delete(found, f.name)
		if n > f.now {
			return true, fmt.Errorf("%w: the data directory %s holds %s in format %d, written by %s, and this version, hapax %s, knows formats up to %d: use a newer version",
				hapax.ErrStoreCorrupt, dir, f.name, n, by, hapax.Version(), f.now)
		}
	}
	for name := range found {
		return true, fmt.Errorf("%w: the data directory %s holds %q, written by %s, which this version, hapax %s, does not know: use a newer version", hapax.ErrStoreCorrupt, dir, name, by, hapax.Version())
	}
	return true, nil
}

// claimDir writes formatFile in a directory without one, and refuses one of a newer version.
func claimDir(dir string) error {
	told, err := checkDirFormat(dir)
	if err != nil || told {
		return err
	}
	var text strings.Builder
	for _, f := range dirFormats {
		fmt.Fprintf(&text, "%s %d\n", f.name, f.now)
	}
	fmt.Fprintf(&text, "written by hapax %s\n", hapax.Version())
	return writeDurably(filepath.Join(dir, formatFile), text.String())
}
