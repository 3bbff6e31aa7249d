package dump

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// page is how many rows are read, or written, at a time.
const page = 100

// A Store is one that can be dumped and restored: all that stand on [driver.Base].
type Store interface {
	driver.Store
	driver.Rows
	LoadRows(ctx context.Context, rows []driver.Put) error
}

// Write writes a dump of the store. What is granted meanwhile may be missing.
func Write(ctx context.Context, s Store, to io.Writer) (sum Summary, err error) {
	id, err := s.StoreID(ctx)
	if err != nil {
		return sum, err
	}
	out := bufio.NewWriter(to)
	digest := sha256.New()
	lines := json.NewEncoder(io.MultiWriter(out, digest))
	lines.SetEscapeHTML(false)
	if err := lines.Encode(Header{Format, id, hapax.Version(), time.Now().UTC()}); err != nil {
		return sum, err
	}
	err = eachRow(ctx, s, func(table string, row driver.Row) error {
		if err := driver.CheckRow(driver.Key{Table: table, Name: row.Name}, row.Value); err != nil {
			return err
		}
		sum.add(table)
		return lines.Encode(line{table, row.Name, string(row.Value)})
	})
	if err != nil {
		return sum, err
	}
	sum.End, sum.Sum = true, hex.EncodeToString(digest.Sum(nil))
	return sum, errors.Join(lines.Encode(sum), out.Flush())
}

// eachRow calls f for all rows, in the order in which they are copied.
func eachRow(ctx context.Context, s Store, f func(table string, row driver.Row) error) error {
	for _, table := range driver.CopyTables() {
		err := eachOf(ctx, s, table, func(row driver.Row) error { return f(table, row) })
		if err != nil {
			return err
		}
	}
	return eachOf(ctx, s, driver.TablePools, func(pool driver.Row) error {
		workers := driver.TableOfWorkers(pool.Name)
		return eachOf(ctx, s, workers, func(row driver.Row) error { return f(workers, row) })
	})
}

func eachOf(ctx context.Context, s Store, table string, f func(driver.Row) error) error {
	for after := ""; ; {
		rows, err := s.ListRows(ctx, table, after, page)
		if err != nil {
			return err
		}
		for _, row := range rows {
			if err := f(row); err != nil {
				return err
			}
			after = row.Name
		}
		if len(rows) < page {
			return nil
		}
	}
}

// Check reads a whole dump, and returns its header and end.
func Check(from io.Reader) (Header, Summary, error) {
	d, err := newReader(from)
	if err != nil {
		return Header{}, Summary{}, err
	}
	for more := true; more; {
		if _, more, err = d.next(); err != nil {
			return Header{}, Summary{}, err
		}
	}
	return d.header, d.end, nil
}

// Load writes the rows of a dump, which was checked, to a store without rows; linesOnly: none
// but those of tags, pools and workers. Nothing is granted until all are there: the fence is closed.
// After an attempt that was broken off it goes on.
func Load(ctx context.Context, s Store, from io.Reader, checked Summary, linesOnly bool) error {
	closed, err := json.Marshal(map[string]string{"closed": "a dump is being loaded into the store, checksum " + checked.Sum + "; if that was broken off, load the same dump again"})
	if err != nil {
		return err
	}
	fence, err := s.Row(ctx, driver.TableFence, driver.RowFence)
	if err != nil {
		return err
	}
	if string(fence) != string(closed) {
		if err := isEmpty(ctx, s); err != nil {
			return err
		}
		if ok, err := s.SwapRow(ctx, driver.TableFence, driver.RowFence, nil, closed); err != nil || !ok {
			return errors.Join(err, fmt.Errorf("%w: somebody else has begun to use the store", hapax.ErrStoreUnavailable))
		}
	}
	d, err := newReader(from)
	if err != nil {
		return err
	}
	fence = nil
	var rows []driver.Put
	for more := true; more; {
		var row driver.Put
		if row, more, err = d.next(); err != nil {
			return err
		}
		switch {
		case !more, linesOnly && !driver.IsLine(row.Key):
		case row.Key == driver.Key{Table: driver.TableFence, Name: driver.RowFence}:
			fence = row.Value
		default:
			rows = append(rows, row)
		}
		if len(rows) >= page || !more {
			if err := s.LoadRows(ctx, rows); err != nil {
				return err
			}
			rows = rows[:0]
		}
	}
	if d.end.Sum != checked.Sum {
		return fmt.Errorf("%w: the dump has changed while it was loaded; empty the store and begin again", hapax.ErrInvalidArgument)
	}
	if ok, err := s.SwapRow(ctx, driver.TableFence, driver.RowFence, closed, fence); err != nil || !ok {
		return errors.Join(err, fmt.Errorf("%w: the store was not opened at the end; load the same dump again", hapax.ErrStoreUnavailable))
	}
	return nil
}

// isEmpty refuses a store that has rows.
func isEmpty(ctx context.Context, s Store) error {
	var used []string
	for _, table := range driver.CopyTables() {
		rows, err := s.ListRows(ctx, table, "", 1)
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			if table == "" {
				table = "tags"
			}
			used = append(used, table)
		}
	}
	if len(used) == 0 {
		return nil
	}
	slices.Sort(used)
	return fmt.Errorf("%w: a dump is loaded into an empty store only, and this one has rows in %s", hapax.ErrInvalidArgument, strings.Join(used, ", "))
}
