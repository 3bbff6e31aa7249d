package coord

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
)

// The rows are JSON objects, which operators can read. An object with a field
// that is not known here was written by a later version or by hand; it is
// refused, because rewriting it would drop that field.

// tagRow is a tag, and the same struct as hapax.Tag.
type tagRow struct {
	Name    string     `json:"-"`
	Kind    hapax.Kind `json:"kind"`
	Start   int64      `json:"start,omitempty"`
	Step    int64      `json:"step,omitempty"`
	MinStep int64      `json:"min_step,omitempty"`
	MaxStep int64      `json:"max_step,omitempty"`
	Mark    int64      `json:"mark,omitempty"`
	Pool    string     `json:"pool,omitempty"`
	Deleted bool       `json:"deleted,omitempty"`
}

// poolRow is a pool.
type poolRow struct {
	Layout string `json:"layout"`
}

// workerRow is a worker.
type workerRow struct {
	Mark    int64  `json:"mark"`
	Epoch   int64  `json:"epoch"`
	Holder  string `json:"holder,omitempty"`
	Expires int64  `json:"expires_ms,omitempty"` // milliseconds of Unix time; 0: the zero time
}

// Encode returns a row as JSON. It cannot fail for structs that hold only
// strings, integers and truth values.
func Encode[Row any](row Row) []byte {
	raw, _ := json.Marshal(row)
	return raw
}

// Decode is the reverse of Encode. What names the row in the error.
func Decode[Row any](what fmt.Stringer, raw []byte) (row Row, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err = d.Decode(&row); err == nil && d.InputOffset() != int64(len(bytes.TrimRight(raw, " \r\n"))) {
		err = fmt.Errorf("%d bytes after the object", int64(len(raw))-d.InputOffset())
	}
	if err != nil {
		err = fmt.Errorf("%w: row %v: %w", hapax.ErrStoreCorrupt, what, err)
	}
	return row, err
}

func decodeTag(key Key, raw []byte) (hapax.Tag, error) {
	row, err := Decode[tagRow](key, raw)
	if err != nil {
		return hapax.Tag{}, err
	}
	row.Name = key.Name
	tag := hapax.Tag(row)
	if whole, err := tag.WithDefaults(); err != nil || whole != tag || tag.Mark > hapax.MaxMark {
		return tag, fmt.Errorf("%w: row %v is no definition of a tag: %s", hapax.ErrStoreCorrupt, key, raw)
	}
	return tag, nil
}

func encodeWorker(w hapax.Worker) []byte {
	row := workerRow{Mark: w.Mark, Epoch: w.Epoch, Holder: w.Holder}
	if !w.Expires.IsZero() {
		row.Expires = w.Expires.UnixMilli()
	}
	return Encode(row)
}

func decodeWorker(key Key, id int64, raw []byte) (hapax.Worker, error) {
	row, err := Decode[workerRow](key, raw)
	if err != nil {
		return hapax.Worker{}, err
	}
	if row.Epoch == 0 {
		return hapax.Worker{}, fmt.Errorf("%w: row %v: the epoch is missing", hapax.ErrStoreCorrupt, key)
	}
	w := hapax.Worker{Pool: key.Pool, ID: id, Mark: row.Mark, Epoch: row.Epoch, Holder: row.Holder}
	if row.Expires != 0 {
		w.Expires = time.UnixMilli(row.Expires).UTC()
	}
	return w, nil
}
