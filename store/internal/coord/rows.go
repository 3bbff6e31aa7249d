package coord

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// tagRow is a tag as it is stored: a JSON object, which operators can read.
type tagRow struct {
	Kind      hapax.Kind `json:"kind"`
	Start     int64      `json:"start,omitempty"`
	Step      int64      `json:"step,omitempty"`
	MinStep   int64      `json:"min_step,omitempty"`
	MaxStep   int64      `json:"max_step,omitempty"`
	Delta     int64      `json:"delta,omitempty"`
	Remainder int64      `json:"remainder,omitempty"`
	Mark      int64      `json:"mark,omitempty"`
	Token     int64      `json:"token,omitempty"`
	Run       int64      `json:"run,omitempty"`
	KeyHash   string     `json:"key_hash,omitempty"`
	Pool      string     `json:"pool,omitempty"`
	Extra     string     `json:"extra,omitempty"`
	Deleted   bool       `json:"deleted,omitempty"`
}

// Encode returns a row as JSON. It cannot fail for structs that hold only
// strings, integers and truth values.
func Encode[Row any](row Row) []byte {
	raw, _ := json.Marshal(row)
	return raw
}

func encodeTag(t driver.Tag) []byte {
	return Encode(tagRow{
		t.Kind, t.Start, t.Step, t.MinStep, t.MaxStep, t.Delta, t.Remainder, t.Mark, t.Token, t.Run, t.KeyHash, t.Pool, t.Extra, t.Deleted,
	})
}

func decodeTag(name string, raw []byte) (driver.Tag, error) {
	var r tagRow
	if err := driver.DecodeRow("tags", name, raw, &r); err != nil {
		return driver.Tag{}, err
	}
	tag := hapax.Tag{
		Name: name, Kind: r.Kind, Start: r.Start, Step: r.Step, MinStep: r.MinStep, MaxStep: r.MaxStep, Mark: r.Mark, Token: r.Token,
		Delta: r.Delta, Remainder: r.Remainder, Pool: r.Pool, Extra: r.Extra, Deleted: r.Deleted,
	}
	if whole, err := tag.WithDefaults(); err != nil || whole != tag || tag.Mark > hapax.MaxMark || r.Token < 0 || r.Run < 0 || r.Run > tag.Mark {
		return driver.Tag{}, fmt.Errorf("%w: row %q of table \"tags\" is no definition of a tag: %.500q", hapax.ErrStoreCorrupt, name, raw)
	}
	return driver.Tag{Tag: tag, KeyHash: r.KeyHash, Run: r.Run}, nil
}

// Row implements driver.Rows.
func (r *Rows) Row(ctx context.Context, table, name string) ([]byte, error) {
	return r.get(ctx, Key{table, name})
}

// ListRows implements driver.Rows.
func (r *Rows) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	var rows []driver.Row
	err := r.list(ctx, table, after, limit, func(name string, raw []byte) error {
		rows = append(rows, driver.Row{Name: name, Value: raw})
		return nil
	})
	return rows, err
}

// errOtherValue ends a swap that expected another value.
var errOtherValue = errors.New("another value")

// SwapRow implements driver.Rows. It is one round trip if this handle has read
// or written the row before.
func (r *Rows) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if err := driver.CheckSwap(table, name, old, next); err != nil {
		return false, err
	}
	err := r.update(ctx, Key{table, name}, func(raw []byte) ([]byte, error) {
		if (raw == nil) != (old == nil) || !bytes.Equal(raw, old) {
			return nil, errOtherValue
		}
		return next, nil
	})
	if errors.Is(err, errOtherValue) {
		return false, nil
	}
	return err == nil, err
}

// Shared implements driver.Rows.
func (r *Rows) Shared() bool { return true }
