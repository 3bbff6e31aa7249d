package tinyid

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/hapax-id/hapax"
)

// A class is what a row of one database issues: the numbers that leave remainder
// when divided by delta. The zero class is not known yet.
type class struct{ delta, remainder int64 }

// line names a class of a biz_type among the marks.
func (c class) line(bizType string) string {
	return fmt.Sprintf("class/%d/%d/%s", c.delta, c.remainder, bizType)
}

// cutLine returns what line was given.
func cutLine(line string) (c class, bizType string, ok bool) {
	parts := strings.SplitN(line, "/", 4)
	if len(parts) != 4 || parts[0] != "class" {
		return c, "", false
	}
	var err, err2 error
	c.delta, err = strconv.ParseInt(parts[1], 10, 64)
	c.remainder, err2 = strconv.ParseInt(parts[2], 10, 64)
	return c, parts[3], err == nil && err2 == nil && c.delta > 0
}

// class returns the class of one database's row. It is read where it is not
// known, and the row compared with the marks of other classes that share numbers
// with it: those of the row before somebody changed it.
func (s *Store) class(ctx context.Context, i int, tag string) (class, error) {
	s.mu.Lock()
	if k := s.known[tag]; k != nil && k.classes[i] != (class{}) && k.compared[i] {
		defer s.mu.Unlock()
		return k.classes[i], nil
	}
	s.mu.Unlock()
	known := sorted(s.marks.Lines()) // from before the row is read
	r, err := s.read(ctx, s.dbs[i], tag)
	if err != nil {
		return class{}, err
	}
	// max_id is the last number that was granted, a mark the first that was not.
	if mark := known.of(&r); r.maxID+1 < mark {
		return class{}, s.marks.Behind(r.class().line(tag), behind(&r, mark))
	}
	s.learn(i, &r)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[tag].compared[i] = true
	return r.class(), nil
}

// marked are classes with their marks, by biz_type.
type marked map[string]map[class]int64

// sorted returns the marks of lines by biz_type.
func sorted(lines map[string]int64) marked {
	m := marked{}
	for line, mark := range lines {
		if c, bizType, ok := cutLine(line); ok {
			if m[bizType] == nil {
				m[bizType] = map[class]int64{}
			}
			m[bizType][c] = mark
		}
	}
	return m
}

// of returns the highest mark of the classes that share numbers with a row's.
func (m marked) of(r *row) int64 {
	most := int64(0)
	for c, mark := range m[r.bizType] {
		if overlap(c, r.class()) {
			most = max(most, mark)
		}
	}
	return most
}

// learn remembers a row's class, which must then be compared.
func (s *Store) learn(i int, r *row) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.knownLocked(r.bizType)
	if k.classes[i] != r.class() {
		k.classes[i], k.compared[i] = r.class(), false
	}
}

// compare looks at all rows of a database once before the first is used, and refuses
// those that are behind the witness.
func (s *Store) compare(ctx context.Context, db *database) error {
	if !s.marks.Durable() || db.checked.Load() {
		return nil
	}
	known := sorted(s.marks.Lines()) // from before the rows are read
	rows, err := db.rows(ctx)
	if err != nil {
		return err
	}
	for i := range rows {
		r := &rows[i]
		if r.check() != nil || isRenamed(r.bizType) {
			continue // it is refused when it is used
		}
		if mark := known.of(r); r.maxID+1 < mark {
			_ = s.marks.Behind(r.class().line(r.bizType), behind(r, mark)) // told where the row is used
		}
	}
	db.checked.Store(true)
	return nil
}

// behind is the error for a row that is behind a mark.
func behind(r *row, mark int64) error {
	return fmt.Errorf("%w: row %q of tiny_id_info has max_id %d, but numbers up to %d are taken: set max_id to %d or more",
		hapax.ErrStoreRolledBack, r.bizType, r.maxID, mark-1, mark-1)
}

// overlap reports whether two classes have a number in common.
func overlap(a, b class) bool {
	// Two such rows of numbers meet where their remainders agree modulo the greatest common divisor, and only
	// there.
	x, y := a.delta, b.delta
	for y != 0 {
		x, y = y, x%y
	}
	return (a.remainder-b.remainder)%x == 0
}
