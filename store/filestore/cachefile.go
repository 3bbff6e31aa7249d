package filestore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/internal/fileid"
)

// maxCacheFile bounds the file of a Cache, in bytes.
const maxCacheFile = 64 << 10

// readCache reads the file of a Cache; one that does not exist is empty. A copy,
// or what may be one, is ErrStoreCopied.
func readCache(path string) (kept, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return kept{}, nil
	}
	if err != nil {
		return kept{}, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxCacheFile+1))
	if err != nil {
		return kept{}, fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, path, err)
	}
	k, err := parseCache(data)
	if err != nil {
		return kept{}, fmt.Errorf("%w: %s: %w", hapax.ErrStoreCorrupt, path, err)
	}
	now, err := fileid.Of(f)
	if err != nil {
		return kept{}, fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, path, err)
	}
	diff := k.File.Compare(now)
	if boot := fileid.Boot(); k.Boot != "" && boot != "" && k.Boot != boot {
		diff = append(diff, "the machine was started anew, and its disk may be an older one")
	}
	if len(diff) > 0 {
		return kept{}, fmt.Errorf("%w: %s: %s", hapax.ErrStoreCopied, path, strings.Join(diff, ", "))
	}
	return k, nil
}

func parseCache(data []byte) (kept, error) {
	var k kept
	text, sum, _ := bytes.Cut(data, []byte("\n"))
	if len(data) > maxCacheFile || string(sum) != fmt.Sprintf("%08x\n", checksum(text)) {
		return k, errors.New("its checksum does not match")
	}
	if err := json.Unmarshal(text, &k); err != nil {
		return k, err
	}
	if k.Format != cacheFormat {
		return k, fmt.Errorf("its format is %.40q, this version reads %q", k.Format, cacheFormat)
	}
	if l := k.Lease; l != nil && (l.Pool == "" || l.Worker < 0 || l.Epoch < 1 || l.Lo < 0 || l.Mark < l.From || l.Mark > l.Hi || l.Lo > l.Hi || k.Store == "") {
		return k, errors.New("its lease is none")
	}
	return k, nil
}

// replaceSynced replaces a file, durably and in one step, by one whose content
// tells the new file's own identity.
func replaceSynced(path string, content func(fileid.Identity) ([]byte, error)) error {
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	id, err := fileid.Of(f)
	if err == nil {
		var data []byte
		if data, err = content(id); err == nil {
			_, err = f.Write(data)
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}
