package server

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/ledger"
	"github.com/hapax-id/hapax/strategy"
)

// maxAddress bounds the file with a server's URL.
const maxAddress = 1024

// closeDir keeps others out of a data directory: a reader knows which numbers come
// next, and a writer decides it. A directory that holds nothing but the server's files
// is closed to others; in another one the files are, and it must not be open to
// everybody. Symbolic links in the place of the server's own files are refused: the
// server would write elsewhere.
func closeDir(path string) error {
	ours, err := filesToClose(path)
	for _, p := range ours {
		if err == nil {
			err = closeToOthers(p)
		}
	}
	return err
}

// filesToClose returns the paths of a data directory that must be closed to others, and refuses a
// directory that cannot be.
func filesToClose(path string) (ours []string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	alone := true
	for _, e := range entries {
		switch {
		case !isOurs(e.Name()):
			// A disk that is mounted there may bring it along.
			alone = alone && e.Name() == "lost+found"
		case e.Type()&os.ModeSymlink != 0:
			return nil, badDir(path, "one without symbolic links in the place of hapax's files, such as "+e.Name()+"; --witness and --store name other places")
		default:
			ours = append(ours, filepath.Join(path, e.Name()))
		}
	}
	if isOwn(info) && alone {
		ours = append(ours, path)
	} else if info.Mode().Perm()&0o002 != 0 {
		return nil, badDir(path, "one that is for hapax alone, or that not everybody can write to")
	}
	return ours, nil
}

func badDir(path, allowed string) error {
	return &hapax.ValueError{Field: "data", Value: path, Allowed: allowed, Err: hapax.ErrInvalidArgument}
}

// closeToOthers takes the rights to a file of this user's from everybody else.
func closeToOthers(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) { // the server that runs here has replaced it
		return nil
	}
	if err != nil || !isOwn(info) || info.Mode().Perm()&0o077 == 0 {
		return err
	}
	return os.Chmod(path, info.Mode().Perm()&^0o077)
}

// isOurs reports whether the server makes files of that name in a data directory.
func isOurs(name string) bool {
	switch name {
	case formatFile, instanceFile, witnessFile, witnessFile + ".lock", witnessFile + ".new", addressFile, definesFile, consoleFile, consoleFile + ".tmp", boltFile, ledger.Dir, strategy.HistoryDir:
		return true
	}
	return strings.HasPrefix(name, leasePrefix)
}

// noteDefinitions leaves word in the directory for commands that open it when no
// server runs: whether the configuration decides what an unknown tag or pool is.
func (n *Node) noteDefinitions(c Config) error {
	path := filepath.Join(n.dir, definesFile)
	if len(c.Tags) == 0 && len(c.Pools) == 0 && c.AutoCreate {
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if DefinesTags(n.dir) {
		return nil
	}
	return writeDurably(path, "The configuration of the server that ran here last defines tags, pools or who creates them.\n")
}

// DefinesTags reports whether the server that runs, or ran last, in a data
// directory has a configuration that decides what an unknown tag or pool is.
func DefinesTags(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, definesFile))
	return err == nil
}

// Announced returns the URL of the server that runs, or ran last, in a data directory; empty
// if there is none. It is trusted if only this user, or the system's administrator,
// can have put it there.
func Announced(dir string) (address string, trusted bool) {
	path := filepath.Join(dir, addressFile)
	// Not through a link: what it leads to would be read with the rights of the command's user.
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxAddress {
		return "", false
	}
	parent, err := os.Stat(dir)
	if err != nil {
		return "", false
	}
	data, err := os.ReadFile(path)
	// It may have grown since.
	if err != nil || len(data) > maxAddress {
		return "", false
	}
	trusted = true
	// Whoever may write to the directory can replace the file.
	for _, i := range []os.FileInfo{info, parent} {
		trusted = trusted && (isOwn(i) || isRoots(i)) && i.Mode().Perm()&0o022 == 0
	}
	return strings.TrimSpace(string(data)), trusted
}
