package testservers

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// cached returns a path in the user's cache: of a file or a directory that fill
// makes where it is told, at the first use.
func cached(name string, fill func(tmp string) error) (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	dir = filepath.Join(dir, "hapax-test")
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// Packages are tested at the same time: the first one makes it, and the others wait for it.
	kind, _, _ := strings.Cut(name, "-")
	release, err := alone(filepath.Join(dir, kind+".lock"))
	if err != nil {
		return "", err
	}
	defer release()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	tmp := path + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return "", err
	}
	if err := fill(tmp); err != nil {
		return "", err
	}
	return path, os.Rename(tmp, path)
}

// stamp returns what changes with the given files, which are programs of the system.
func stamp(paths ...string) (string, error) {
	sum := sha256.New()
	for _, path := range paths {
		file, err := filepath.EvalSymlinks(path)
		if err != nil {
			return "", err
		}
		info, err := os.Stat(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(sum, file, info.ModTime().UnixNano())
	}
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}

// copyTemplate makes dir, which does not exist, a copy of the data directory that a command
// makes at its first use, run under the account. To install takes half a second of processor
// or more each time.
func copyTemplate(t testing.TB, name, account, dir string, command func(dir string) []string) {
	t.Helper()
	key, err := stamp(command("/")[0])
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	sum := sha256.Sum256([]byte(key + strings.Join(command("/"), " "))) // another command makes another template
	template, err := cached(name+"-"+hex.EncodeToString(sum[:8]), func(tmp string) error {
		install := command(dir)
		run(t, account, filepath.Dir(dir), install[0], install[1:]...)
		run(t, "", filepath.Dir(dir), "cp", "-a", dir, tmp)
		return os.RemoveAll(dir)
	})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	run(t, "", filepath.Dir(dir), "cp", "-a", template, dir)
}

// rename gives a PostgreSQL cluster that is a copy an identity of its own: that of the
// template stands at the beginning of its control file, which ends in a checksum, and in
// the first page of its log.
func rename(dir string) error {
	path := filepath.Join(dir, "global", "pg_control")
	control, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	castagnoli, end := crc32.MakeTable(crc32.Castagnoli), 8
	for ; end+4 <= len(control); end += 4 {
		if binary.LittleEndian.Uint32(control[end:]) == crc32.Checksum(control[:end], castagnoli) {
			break
		}
	}
	if end+4 > len(control) {
		return fmt.Errorf("%s: no checksum found", path)
	}
	old := binary.LittleEndian.Uint64(control)
	now := rand.Uint64()
	binary.LittleEndian.PutUint64(control, now)
	binary.LittleEndian.PutUint32(control[end:], crc32.Checksum(control[:end], castagnoli))
	if err := rewrite(path, 0, control); err != nil {
		return err
	}
	segments, err := filepath.Glob(filepath.Join(dir, "pg_wal", "0*"))
	for _, path := range segments {
		const at = 24 // after the header that all pages have
		page, readErr := os.ReadFile(path)
		if err = errors.Join(err, readErr); err != nil {
			break
		}
		if len(page) < at+8 || binary.LittleEndian.Uint64(page[at:]) != old {
			return fmt.Errorf("%s: the cluster's identity is not in its header", path)
		}
		err = rewrite(path, at, binary.LittleEndian.AppendUint64(nil, now))
	}
	return err
}

// rewrite writes over a part of a file, whose owner it keeps.
func rewrite(path string, at int64, part []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(part, at)
	return errors.Join(err, f.Close())
}
