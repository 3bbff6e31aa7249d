package sequences

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/hapax-id/hapax"
)

// scanPage is how many numbers one query of a scan returns.
const scanPage = 5000

// A Repeated is a number that is in a column more than once.
type Repeated struct {
	Number hapax.ID `json:"id"`
	Times  int64    `json:"times"`
}

// ScanOptions tell how to read a column.
type ScanOptions struct {
	Rate     int64                          // rows a second; 0: no bound
	Progress func(done float64, rows int64) // gets the part that is done, 0 to 1, and how many rows that were; may be nil

	// Delta and Remainder are those of the tag: beside it, an old source may issue the numbers
	// between. 0 is 1.
	Delta, Remainder int64
}

// Scanned is what a scan of a column has found.
type Scanned struct {
	Rows, Numbers, Min, Max int64
	Highest                 int64      // of the tag's
	Twice                   int64      // numbers that are there more than once
	First                   []Repeated // the first of them
}

// maxRepeated bounds how many repeated numbers are listed.
const maxRepeated = 20

// Scan reads all numbers of a column in their order, by its index, in many short queries
// that change nothing, and counts those that are there more than once.
func Scan(ctx context.Context, reference, table, column string, o ScanOptions) (found Scanned, err error) {
	db, err := Open(ctx, reference, Options{})
	if err != nil {
		return found, err
	}
	defer db.Close()
	reader, ok := db.(interface {
		generating
		pageOf(c Column, after int64) string
	})
	if !ok {
		return found, &hapax.ValueError{Field: "--column", Value: Shown(reference), Allowed: "a database with tables: postgres:// or mysql://", Err: hapax.ErrInvalidArgument}
	}
	c, err := reader.column(ctx, table, column)
	switch {
	case err != nil:
		return found, err
	case c.Last == 0:
		return found, &hapax.ValueError{Field: "column", Value: c.String() + ", " + c.Type, Allowed: "a column of whole numbers", Err: hapax.ErrInvalidArgument}
	case !c.Index:
		return found, fmt.Errorf("%w: %s has no index that begins with it, so that each query would take a scan: %s", hapax.ErrInvalidArgument, c, c.Create)
	}
	most, err := reader.highest(ctx, c)
	if err != nil {
		return found, err
	}
	// Each page begins behind the last number, by the index: no query is long, and rows that come
	// meanwhile disturb none.
	for after := int64(math.MinInt64); ; {
		began, rows, numbers := time.Now(), int64(0), 0
		err := reader.list(ctx, reader.pageOf(c, after), func(scan func(...any) error) error {
			var n, times int64
			if err := scan(&n, &times); err != nil {
				return err
			}
			if found.Numbers == 0 {
				found.Min = n
			}
			if times > 1 {
				if found.Twice++; len(found.First) < maxRepeated {
					found.First = append(found.First, Repeated{hapax.ID(n), times})
				}
			}
			after, found.Max = n, n
			if o.Delta <= 1 || n%o.Delta == o.Remainder {
				found.Highest = n
			}
			rows += times
			numbers++
			found.Numbers++
			return nil
		})
		if found.Rows += rows; err != nil || numbers < scanPage {
			return found, err
		}
		if o.Progress != nil && most > found.Min {
			o.Progress(min(1, float64(after-found.Min)/float64(most-found.Min)), found.Rows)
		}
		if o.Rate > 0 {
			select {
			case <-time.After(time.Duration(float64(rows)/float64(o.Rate)*float64(time.Second)) - time.Since(began)):
			case <-ctx.Done():
				return found, context.Cause(ctx)
			}
		}
	}
}

func (p *postgres) pageOf(c Column, after int64) string {
	name := quoteDouble(c.Name)
	return fmt.Sprintf("SELECT %[1]s::bigint, count(*) FROM %[2]s WHERE %[1]s > %[3]d GROUP BY %[1]s ORDER BY %[1]s LIMIT %[4]d", name, pgQuoted(c.schema, c.table), after, scanPage)
}

func (m *mySQL) pageOf(c Column, after int64) string {
	name := quoteTick(c.Name)
	return fmt.Sprintf("SELECT %[1]s, COUNT(*) FROM %[2]s WHERE %[1]s > %[3]d GROUP BY %[1]s ORDER BY %[1]s LIMIT %[4]d", name, quoteTick(c.table), after, scanPage)
}

// Issued returns the first number at or above a tag's mark, of those that it issues, in the
// columns of a source, with its column; nothing where there is none.
func Issued(ctx context.Context, db Database, s *Source, tag hapax.Tag) (found string, err error) {
	reader, ok := db.(interface {
		generating
		issuedOf(c Column, tag hapax.Tag) string
	})
	if !ok {
		return "", nil
	}
	for _, c := range s.Feeds {
		err := reader.list(ctx, reader.issuedOf(c, tag), func(scan func(...any) error) error {
			var n int64
			err := scan(&n)
			found = fmt.Sprintf("%s holds %d", c, n)
			return err
		})
		if err != nil || found != "" {
			return found, err
		}
	}
	return "", nil
}

const issued = "SELECT %[1]s FROM %[2]s WHERE %[1]s >= %[3]d AND MOD(%[1]s, %[4]d) = %[5]d ORDER BY %[1]s LIMIT 1"

func (p *postgres) issuedOf(c Column, tag hapax.Tag) string {
	return fmt.Sprintf(issued, quoteDouble(c.Name), pgQuoted(c.schema, c.table), tag.Mark, max(tag.Delta, 1), tag.Remainder)
}

func (m *mySQL) issuedOf(c Column, tag hapax.Tag) string {
	return fmt.Sprintf(issued, quoteTick(c.Name), quoteTick(c.table), tag.Mark, max(tag.Delta, 1), tag.Remainder)
}
