package filestore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
	"github.com/hapax-id/hapax/internal/durable"
)

// format is the version of the file.
const format = "hapax rows 1"

// maxFile bounds the file's size, in bytes. It is room for some 50,000 workers.
const maxFile = 16 << 20

// The state is the file's first line, as JSON. The second line is its CRC-32C,
// so that a mark that was edited or has decayed is not taken for one.
type state struct {
	Format string                       `json:"format"`
	ID     string                       `json:"id"`
	Tables map[string]map[string][]byte `json:"tables"` // the rows' values, by table and name
}

// encode returns the state as it stands in the file.
func (st *state) encode() ([]byte, error) {
	text, err := json.Marshal(st)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", hapax.ErrInternal, err)
	}
	return fmt.Appendf(text, "\n%08x\n", checksum(text)), nil
}

func checksum(text []byte) uint32 {
	return crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli))
}

// parse decodes what encode has encoded.
func parse(data []byte) (*state, error) {
	text, sum, _ := bytes.Cut(data, []byte("\n"))
	if string(sum) != fmt.Sprintf("%08x\n", checksum(text)) {
		return nil, errors.New("its checksum does not match")
	}
	var st state
	if err := json.Unmarshal(text, &st); err != nil {
		return nil, err
	}
	switch {
	case st.Format != format:
		return nil, fmt.Errorf("its format is %.40q, this version reads %q", st.Format, format)
	case st.ID == "" || st.Tables == nil:
		return nil, errors.New("it has no ID or no tables")
	}
	return &st, nil
}

// begin fails if the call cannot be served.
func (s *Store) begin(ctx context.Context) error {
	if s.closed.Load() {
		return fmt.Errorf("%w: the store in %s", hapax.ErrClosed, s.path)
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	return nil
}

// read returns the state. It needs no lock, since the file is only ever
// replaced as a whole.
func (s *Store) read(ctx context.Context) (*state, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	st, err := s.load()
	if err != nil {
		return nil, s.explain(err)
	}
	return st, nil
}

// load reads the file. A missing one is an empty state, but only to Open.
func (s *Store) load() (*state, error) {
	f, err := os.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) && s.id == "" {
		return &state{Tables: map[string]map[string][]byte{}}, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is gone; put it back", hapax.ErrStoreReplaced, s.path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%w: %s is larger than %d bytes", hapax.ErrStoreCorrupt, s.path, maxFile)
	}
	st, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w; if all its workers are past their marks, remove it", hapax.ErrStoreCorrupt, s.path, err)
	}
	if s.id != "" && st.ID != s.id {
		return nil, fmt.Errorf("%w: %s has another ID than when it was opened", hapax.ErrStoreReplaced, s.path)
	}
	return st, nil
}

// change lets f change the state, and makes it durable if f reports that it did.
// It returns the state after that.
func (s *Store) change(ctx context.Context, f func(*state) bool) (*state, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, s.explain(context.Cause(ctx))
	}
	lock, err := durable.Lock(ctx, s.path+".lock")
	if err != nil {
		return nil, s.explain(err)
	}
	defer func() { _ = lock.Close() }()
	st, err := s.load()
	if err == nil && f(st) {
		err = s.save(st)
	}
	if err != nil {
		return nil, s.explain(err)
	}
	return st, nil
}

// save replaces the file. The caller holds the lock.
func (s *Store) save(st *state) error {
	data, err := st.encode()
	if err != nil {
		return err
	}
	if len(data) > maxFile {
		return fmt.Errorf("%w: %s would be larger than %d bytes", api.ErrLimitExceeded, s.path, maxFile)
	}
	return durable.Replace(s.disk, s.path, func(*os.File) ([]byte, error) { return data, nil })
}

// explain gives an error that has none its sentinel.
func (s *Store) explain(err error) error {
	if _, ok := errors.AsType[*hapax.Error](err); ok {
		return err
	}
	return fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, s.path, err)
}
