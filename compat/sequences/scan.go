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

// Scanned is what a scan of a column has found.
type Scanned struct {
	Rows, Numbers, Min, Max int64
	Twice                   int64      // numbers that are there more than once
	First                   []Repeated // the first of them
}

// maxRepeated bounds how many repeated numbers are listed.
const maxRepeated = 20

// Scan reads all numbers of a column in their order, by its index, in many short queries
// that change nothing, and counts those that are there more than once. rate bounds the
// rows a second; 0 is no bound. progress, if set, gets the part that is done, 0 to 1.
func Scan(ctx context.Context, reference, table, column string, rate int64, progress func(done float64)) (found Scanned, err error) {
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
			rows += times
			numbers++
			found.Numbers++
			return nil
		})
		if found.Rows += rows; err != nil || numbers < scanPage {
			return found, err
		}
		if progress != nil && most > found.Min {
			progress(min(1, float64(after-found.Min)/float64(most-found.Min)))
		}
		if rate > 0 {
			select {
			case <-time.After(time.Duration(float64(rows)/float64(rate)*float64(time.Second)) - time.Since(began)):
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
