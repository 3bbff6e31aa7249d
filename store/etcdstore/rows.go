package etcdstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hapax-id/hapax"
)

// The values are JSON objects, which operators can read with etcdctl. An object
// with a field that is not known here was written by a later version or by
// hand; it is refused, because rewriting it would drop that field.

// identity is the value of the key "store".
type identity struct {
	ID      string `json:"id"`      // the store ID
	Cluster string `json:"cluster"` // the cluster that the store lives in, in hex
}

// tagRow is the value of a tag's key, and the same struct as hapax.Tag.
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

// poolRow is the value of a pool's key.
type poolRow struct {
	Layout string `json:"layout"`
}

// workerRow is the value of a worker's key.
type workerRow struct {
	Mark    int64  `json:"mark"`
	Epoch   int64  `json:"epoch"`
	Holder  string `json:"holder,omitempty"`
	Expires int64  `json:"expires_ms,omitempty"` // milliseconds of Unix time; 0: the zero time
}

// encode never fails: the rows hold only strings, integers and truth values.
func encode[T identity | tagRow | poolRow | workerRow](row T) []byte {
	raw, _ := json.Marshal(row)
	return raw
}

func decode[T identity | tagRow | poolRow | workerRow](key string, raw []byte) (row T, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err = d.Decode(&row); err == nil && d.InputOffset() != int64(len(bytes.TrimRight(raw, " \r\n"))) {
		err = fmt.Errorf("%d bytes after the object", int64(len(raw))-d.InputOffset())
	}
	if err != nil {
		err = fmt.Errorf("%w: etcd key %q: %w", hapax.ErrStoreCorrupt, key, err)
	}
	return row, err
}

func decodeTag(key, name string, raw []byte) (hapax.Tag, error) {
	row, err := decode[tagRow](key, raw)
	if err != nil {
		return hapax.Tag{}, err
	}
	row.Name = name
	tag := hapax.Tag(row)
	if whole, err := tag.WithDefaults(); err != nil || whole != tag || tag.Mark > hapax.MaxMark {
		return tag, fmt.Errorf("%w: etcd key %q: it is no definition of a tag: %+v", hapax.ErrStoreCorrupt, key, tag)
	}
	return tag, nil
}

func encodeWorker(w hapax.Worker) []byte {
	row := workerRow{Mark: w.Mark, Epoch: w.Epoch, Holder: w.Holder}
	if !w.Expires.IsZero() {
		row.Expires = w.Expires.UnixMilli()
	}
	return encode(row)
}

func decodeWorker(key, pool string, id int64, raw []byte) (hapax.Worker, error) {
	row, err := decode[workerRow](key, raw)
	if err != nil {
		return hapax.Worker{}, err
	}
	if row.Epoch == 0 {
		return hapax.Worker{}, fmt.Errorf("%w: etcd key %q: the epoch is missing", hapax.ErrStoreCorrupt, key)
	}
	w := hapax.Worker{Pool: pool, ID: id, Mark: row.Mark, Epoch: row.Epoch, Holder: row.Holder}
	if row.Expires != 0 {
		w.Expires = time.UnixMilli(row.Expires).UTC()
	}
	return w, nil
}
