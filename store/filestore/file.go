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
	"path/filepath"
	"syscall"
	"time"

	"github.com/hapax-id/hapax"
)

// format is the version of the file.
const format = "hapax workers 1"

// maxFile bounds the file's size, in bytes. It is room for some 100,000 workers.
const maxFile = 16 << 20

// The state is the file's first line, as JSON. The second line is its CRC-32C,
// so that a mark that was edited or has decayed is not taken for one.
type state struct {
	Format string           `json:"format"`
	ID     string           `json:"id"`
	Pools  map[string]*pool `json:"pools"`
}

type pool struct {
	Layout  string           `json:"layout,omitempty"`
	Workers map[int64]worker `json:"workers"`
}

type worker struct {
	Mark    int64  `json:"mark"`
	Epoch   int64  `json:"epoch"`
	Holder  string `json:"holder,omitempty"`
	Expires int64  `json:"expires"` // in ms since 1970
}

// worker returns one row, or the zero worker.
func (st *state) worker(name string, id int64) hapax.Worker {
	if st.Pools[name] == nil {
		return hapax.Worker{}
	}
	w, ok := st.Pools[name].Workers[id]
	if !ok {
		return hapax.Worker{}
	}
	return hapax.Worker{Pool: name, ID: id, Mark: w.Mark, Epoch: w.Epoch, Holder: w.Holder, Expires: time.UnixMilli(w.Expires)}
}

// layout returns the pool's layout, or the empty string if none is frozen.
func (st *state) layout(name string) string {
	if p := st.Pools[name]; p != nil {
		return p.Layout
	}
	return ""
}

// pool returns the pool, which it adds if there is none.
func (st *state) pool(name string) *pool {
	if st.Pools[name] == nil {
		st.Pools[name] = &pool{Workers: map[int64]worker{}}
	}
	return st.Pools[name]
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
	case st.ID == "" || st.Pools == nil:
		return nil, errors.New("it has no ID or no pools")
	}
	for name, p := range st.Pools {
		if p == nil || p.Workers == nil {
			return nil, fmt.Errorf("pool %q has no workers", name)
		}
	}
	return &st, nil
}

// begin fails if the call cannot be served.
func (s *Store) begin(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("%w: %w", hapax.ErrStoreUnavailable, err)
	}
	if s.closed.Load() {
		return fmt.Errorf("%w: the store is closed", hapax.ErrStoreUnavailable)
	}
	return nil
}

// read returns the state. It needs no lock, since the file is only ever
// replaced as a whole.
func (s *Store) read(ctx context.Context) (state, error) {
	if err := s.begin(ctx); err != nil {
		return state{}, err
	}
	st, err := s.load()
	if err != nil {
		return state{}, s.explain(err)
	}
	return *st, nil
}

// load reads the file. A missing one is an empty state, but only to Open.
func (s *Store) load() (*state, error) {
	f, err := os.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) && s.id == "" {
		return &state{Pools: map[string]*pool{}}, nil
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

// change lets f change the state, and makes it durable if f says that it did.
// It returns the state after that.
func (s *Store) change(ctx context.Context, f func(*state) (bool, error)) (state, error) {
	if err := s.begin(ctx); err != nil {
		return state{}, err
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return state{}, s.explain(context.Cause(ctx))
	}
	unlock, err := lock(ctx, s.path+".lock")
	if err != nil {
		return state{}, s.explain(err)
	}
	defer func() { _ = unlock() }()
	st, err := s.load()
	if err != nil {
		return state{}, s.explain(err)
	}
	changed, err := f(st)
	if err == nil && changed {
		err = s.save(st)
	}
	if err != nil {
		return state{}, s.explain(err)
	}
	return *st, nil
}

// save replaces the file. The caller holds the lock.
func (s *Store) save(st *state) error {
	data, err := st.encode()
	if err != nil {
		return err
	}
	if len(data) > maxFile {
		return fmt.Errorf("%w: %s would be larger than %d bytes", hapax.ErrLimitExceeded, s.path, maxFile)
	}
	temp := s.path + ".tmp"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := writeSynced(temp, data); err != nil {
		return err
	}
	if err := os.Rename(temp, s.path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(s.path))
}

// writeSynced writes a new file.
func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes a rename durable, where the system can.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return errors.Join(err, d.Close())
}

// explain gives an error that has none its sentinel.
func (s *Store) explain(err error) error {
	if _, ok := errors.AsType[*hapax.Error](err); ok {
		return err
	}
	return fmt.Errorf("%w: %s: %w", hapax.ErrStoreUnavailable, s.path, err)
}
