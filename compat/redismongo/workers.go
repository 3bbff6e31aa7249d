package redismongo

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/durable"
)

// An Instance is the holder of a worker ID: a process of an application, by the address at
// which it can be reached.
type Instance struct {
	Name string // of the application; up to 100 bytes without : and /
	Port uint16
	IP   netip.Addr
}

// Key returns the instance's name in a registry, such as
// sequence-client.8112.3232235742 for 192.168.0.222.
func (i Instance) Key() string { return i.join(".") }

// File returns the name of the instance's local file.
func (i Instance) File() string { return i.join(":") + ".properties" }

func (i Instance) join(separator string) string {
	// An IPv4 address that comes as IPv6 has another number, and would be another instance.
	ip := new(big.Int).SetBytes(i.IP.Unmap().AsSlice())
	return i.Name + separator + strconv.Itoa(int(i.Port)) + separator + ip.String()
}

// Validate checks the instance's name.
func (i Instance) Validate() error {
	switch {
	case hapax.ValidateName("name", i.Name) != nil || len(i.Name) > 100 || strings.ContainsAny(i.Name, `:/\`) || strings.HasPrefix(i.Name, "."):
		return &hapax.ValueError{Field: "name", Value: i.Name, Allowed: `1 to 100 bytes without : / \ and control characters, not beginning with a dot`, Err: hapax.ErrInvalidArgument}
	case i.Port == 0:
		return &hapax.ValueError{Field: "port", Value: i.Port, Allowed: "1 to 65535", Err: hapax.ErrInvalidArgument}
	case !i.IP.IsValid() || i.IP.Zone() != "":
		return &hapax.ValueError{Field: "ip", Value: i.IP.String(), Allowed: "an IP address", Err: hapax.ErrInvalidArgument}
	}
	return nil
}

// A Registry knows the worker ID of each instance by its key.
type Registry interface {
	// Register returns the worker ID of an instance. One that is new gets the one it
	// wants, if that is free, or else the lowest of ids that is; wanted is -1 for none.
	// hapax.ErrNoWorker where none is free, and hapax.ErrStoreUnavailable.
	Register(ctx context.Context, key string, ids hapax.WorkerRange, wanted int64) (int64, error)
}

// Bounds of a registry.
const (
	maxInstances    = 1 << 16
	registerTimeout = 5 * time.Second
)

// Sticky is the worker ID that an instance keeps over restarts, by its name, port and
// address: what a registry says, and a local file while the registry is away.
//
// Neither is trusted. A registry that was emptied, or a file that was copied, gives two
// instances the same worker ID: then the second one waits for the first one's lease.
type Sticky struct {
	Registry Registry
	Instance Instance

	// Dir is where the local file is; empty for none.
	Dir string

	// Timeout is how long the registry may take; default 5 s.
	Timeout time.Duration
}

// Worker returns the instance's worker ID, one of ids. Where the worker ID is split, it
// is the part of it that tells instances apart.
func (s Sticky) Worker(ctx context.Context, ids hapax.WorkerRange) (int64, error) {
	if err := s.Instance.Validate(); err != nil {
		return 0, err
	}
	if ids.Lo < 0 || ids.Len() < 1 {
		return 0, &hapax.ValueError{Field: "ids", Value: fmt.Sprint(ids), Allowed: "worker IDs from 0", Err: hapax.ErrInvalidArgument}
	}
	wanted, fileErr := s.readFile(ids)
	limited, cancel := context.WithTimeout(ctx, cmp.Or(s.Timeout, registerTimeout))
	defer cancel()
	id, err := s.Registry.Register(limited, s.Instance.Key(), ids, wanted)
	switch {
	case errors.Is(err, hapax.ErrStoreUnavailable) && fileErr == nil && wanted >= 0:
		return wanted, nil
	case err != nil:
		return 0, errors.Join(err, fileErr)
	case !ids.Contains(id):
		return 0, &hapax.ValueError{Field: s.Instance.Key() + " in the registry", Value: id, Allowed: fmt.Sprintf("%d to %d", ids.Lo, ids.Hi-1), Err: hapax.ErrStoreCorrupt}
	case id != wanted:
		return id, s.writeFile(id)
	}
	return id, nil
}

const (
	fileKey      = "workerId"
	maxFileBytes = 4 << 10
)

// readFile returns the worker ID that the local file tells; -1 if there is none.
func (s Sticky) readFile(ids hapax.WorkerRange) (int64, error) {
	if s.Dir == "" {
		return -1, nil
	}
	path := filepath.Join(s.Dir, s.Instance.File())
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return -1, fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	id, ok := parseProperties(raw)
	if !ok || !ids.Contains(id) {
		return -1, fmt.Errorf("%w: %s: want one line %s=ID with an ID from %d to %d; remove the file", hapax.ErrStoreCorrupt, path, fileKey, ids.Lo, ids.Hi-1)
	}
	return id, nil
}

// parseProperties reads the one worker ID of a file in the form of Java's properties.
func parseProperties(raw []byte) (id int64, ok bool) {
	if len(raw) > maxFileBytes {
		return 0, false
	}
	for line := range bytes.Lines(raw) {
		text := strings.TrimSpace(string(line))
		if text == "" || text[0] == '#' || text[0] == '!' {
			continue
		}
		key, value := text, ""
		if i := strings.IndexAny(text, "=: \t"); i >= 0 {
			key, value = text[:i], strings.TrimLeft(text[i:], "=: \t")
		}
		if !strings.EqualFold(key, fileKey) {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 62)
		// Of two IDs in one file nobody can tell which one was meant.
		if err != nil || ok {
			return 0, false
		}
		id, ok = int64(n), true
	}
	return id, ok
}

func (s Sticky) writeFile(id int64) error {
	if s.Dir == "" {
		return nil
	}
	err := durable.Replace(durable.OS, filepath.Join(s.Dir, s.Instance.File()), func(*os.File) ([]byte, error) {
		return fmt.Appendf(nil, "%s=%d\n", fileKey, id), nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	return nil
}

// full is the error of a registry without a free worker ID.
func full(ids hapax.WorkerRange) error {
	return fmt.Errorf("%w: the registry of instances has none left from %d to %d; remove instances that are gone", hapax.ErrNoWorker, ids.Lo, ids.Hi-1)
}
