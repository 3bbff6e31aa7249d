package server

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hapax-id/hapax"
)

// A data directory that a newer version has written is refused, by both formats, and
// left as it is.
func TestDirOfANewerVersion(t *testing.T) {
	for text, want := range map[string]string{
		"data 2\nledger 1\nwritten by hapax 9.9\n":           "holds data in format 2, written by hapax 9.9, and this version, hapax " + hapax.Version() + ", knows formats up to 1",
		"data 1\nledger 7\nwritten by hapax 9.9\n":           "holds ledger in format 7, written by hapax 9.9",
		"data 1\nledger 1\nshards 1\nwritten by hapax 9.9\n": `holds "shards", written by hapax 9.9, which this version, hapax ` + hapax.Version() + `, does not know`,
		"\x00\x01": "names no format",
		"data 1\nledger 1\nhistory 1\nwritten by hapax 0.0.1\n": "",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, formatFile)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := claimDir(dir)
		if want == "" && err != nil || want != "" && (!errors.Is(err, hapax.ErrStoreCorrupt) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
		if raw, err := os.ReadFile(path); err != nil || string(raw) != text {
			t.Errorf("%q became %q, %v", text, raw, err)
		}
	}
	dir := t.TempDir()
	if err := claimDir(dir); err != nil {
		t.Fatal(err)
	}
	if told, err := checkDirFormat(dir); !told || err != nil {
		t.Errorf("a new directory: %v, %v", told, err)
	}
}
