package dump

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// page is how many rows are read, or written, at a time.
const page = 100

// A Store can be dumped and restored, as all on [driver.Base] can.
type Store interface {
	driver.Store
	driver.Rows
	driver.Founded
	LoadRows(ctx context.Context, closed []byte, rows []driver.Put, over bool) error
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
	if err := lines.Encode(Header{Format: Format, Store: id, Hapax: hapax.Version(), At: time.Now().UTC()}); err != nil {
		return sum, err
	}
	err = eachRow(ctx, s, func(table string, row driver.Row) error {
		// A row that cannot be loaded is found out now, and not when the dump is needed.
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
		var row driver.Put
		if row, more, err = d.next(); err != nil {
			return Header{}, Summary{}, err
		}
		if row.Key == (driver.Key{Table: driver.TableFence, Name: driver.RowFence}) {
			d.header.Retired = driver.RetirementIn(row.Value)
		}
	}
	return d.header, d.end, nil
}
