package redisstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// rowsBytes is about how much of values one script answers.
const rowsBytes = 1 << 20

// field returns what a row is called in the hash of all rows. Names have no
// control characters.
func field(table, name string) string { return table + "\x00" + name }

// evalRows runs a script on rows and tags.
func (s *Store) evalRows(ctx context.Context, sc script, tags []string, args ...any) (reply, error) {
	keys := []string{s.keys.store(), s.keys.rows(), s.keys.names()}
	for _, tag := range tags {
		keys = append(keys, s.keys.tag(tag))
	}
	r, err := s.eval(ctx, sc, keys, args...)
	if err == nil && r.text(0) == saidLost {
		err = s.rowsLost()
	}
	return r, err
}

func (s *Store) rowsLost() error {
	return fmt.Errorf("%w: redis: rows are gone: key %q, key %q and the field rows of %q do not have the same count",
		hapax.ErrStoreRolledBack, s.keys.rows(), s.keys.names(), s.keys.store())
}

// Row implements driver.Rows. It is one round trip.
func (s *Store) Row(ctx context.Context, table, name string) ([]byte, error) {
	return request(ctx, s, "read a row", func(ctx context.Context) ([]byte, error) {
		r, err := s.evalRows(ctx, readRowScript, nil, field(table, name))
		if err != nil || r.text(0) == saidMissing {
			return nil, err
		}
		return []byte(r.text(1)), nil
	})
}

// ListRows implements driver.Rows. A round trip brings 500 rows, or about a MiB.
func (s *Store) ListRows(ctx context.Context, table, after string, limit int) ([]driver.Row, error) {
	if limit <= 0 {
		return nil, nil
	}
	return request(ctx, s, "list rows", func(ctx context.Context) ([]driver.Row, error) {
		var rows []driver.Row
		for {
			r, err := s.evalRows(ctx, listRowsScript, nil,
				"("+field(table, after), "("+table+"\x01", min(limit-len(rows), pageSize), rowsBytes)
			if err != nil {
				return nil, err
			}
			for i := 1; i+1 < len(r); i += 2 {
				after = strings.TrimPrefix(r.text(i), field(table, ""))
				rows = append(rows, driver.Row{Name: after, Value: []byte(r.text(i + 1))})
			}
			if r.text(0) == saidOK || len(rows) >= limit {
				return rows, nil
			}
		}
	})
}

// SwapRow implements driver.Rows. It is one round trip.
func (s *Store) SwapRow(ctx context.Context, table, name string, old, next []byte) (bool, error) {
	if err := driver.CheckSwap(table, name, old, next); err != nil {
		return false, err
	}
	return request(ctx, s, "write a row", func(ctx context.Context) (bool, error) {
		r, err := s.evalRows(ctx, swapRowScript, nil, field(table, name), old, next)
		return err == nil && r.text(0) == saidOK, err
	})
}

// Shared implements driver.Rows.
func (s *Store) Shared() bool { return true }
