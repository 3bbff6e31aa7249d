package leasecache

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/internal/fileid"
)

// maxFile bounds the file's size, in bytes.
const maxFile = 64 << 10

// readFile reads the file; one that does not exist is empty. A copy,
// or what may be one, is ErrStoreCopied.
func readFile(path string) (kept, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return kept{}, nil
	}
	if err != nil {
		return kept{}, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return kept{}, fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, path, err)
	}
	k, err := parse(data)
	if err != nil {
		return kept{}, fmt.Errorf("%w: the lease in %s: %w", hapax.ErrStoreCorrupt, path, err)
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

// errFormat marks a file that another version has written.
var errFormat = errors.New("use that version, or remove the file")

func parse(data []byte) (kept, error) {
	var k kept
	text, sum, _ := bytes.Cut(data, []byte("\n"))
	// With the line break at its end: a file that was cut short lacks it.
	if len(data) > maxFile || string(sum) != fmt.Sprintf("%08x\n", checksum(text)) {
		return k, errors.New("its checksum does not match")
	}
	if err := json.Unmarshal(text, &k); err != nil {
		return k, err
	}
	if k.Format != format {
		return k, fmt.Errorf("its format is %.40q, and this version, hapax %s, reads %q: %w", k.Format, hapax.Version(), format, errFormat)
	}
	if l := k.Lease; l != nil && (l.Pool == "" || l.Worker < 0 || l.Token < 1 || l.Key == "" || l.Lo < 0 || l.Mark < l.From || l.Mark > l.Hi || l.Lo > l.Hi || k.Store == "") {
		return k, errors.New("its lease is none")
	}
	return k, nil
}

// checksum is the CRC-32C of the file's first line.
func checksum(text []byte) uint32 {
	return crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli))
}
