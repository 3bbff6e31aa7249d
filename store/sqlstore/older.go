package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// The formats of the tables. The one in which a store is kept stands with its ID.
const (
	formatFirst  = 1 // pools and workers in tables of their own
	formatSecond = 2 // rows; no room for a format
	formatNow    = 3 // the ID under another name, so that versions of those before find none
)

var (
	_ driver.Exclusive = (*Store)(nil)
	_ driver.Migrated  = (*Store)(nil)
)

// idOf returns the store's ID from what the meta table holds.
func idOf(meta map[string]string) string {
	if id := meta[metaStoreID]; id != "" {
		return id
	}
	return meta[metaStoreIDBefore]
}

// formatOf returns in which format the store is kept: formatNow where there is none yet.
func (s *Store) formatOf(ctx context.Context, c *sql.Conn) (int64, error) {
	rows, err := texts(ctx, c, s.sql.format)
	switch class := s.dialect.classify(err); {
	case err == nil && len(rows) == 0:
		return formatNow, nil
	case err == nil:
		format, err := strconv.ParseInt(rows[0][0], 10, 64)
		if err == nil && format > formatNow {
			err = fmt.Errorf("%w: the tables have format %d, and this version, hapax %s, knows formats %d to %d: use a newer version", hapax.ErrStoreCorrupt, format, hapax.Version(), formatFirst, formatNow)
		}
		return format, err
	case class == noTable:
		return formatNow, nil
	case class != noColumn:
		return 0, err
	}
	_, err = texts(ctx, c, s.sql.olderWorkers)
	switch {
	case err == nil:
	case s.dialect.classify(err) == noTable:
		return formatSecond, nil
	default:
		return 0, err
	}
	// The workers of the first version may stand beside rows only where that was started on
	// the tables of the second one by mistake.
	switch _, err = texts(ctx, c, s.sql.anyOf[1]); {
	case err == nil:
		return formatSecond, nil
	case s.dialect.classify(err) == noTable:
		return formatFirst, nil
	}
	return 0, err
}

// migrateFirst moves what the first version left into the tables of this one. The first
// version's own programs cannot write any more once its ID is gone, and a statement of
// theirs that is under way ends before a table is renamed. Each step may be repeated, also
// by others at the same time; the format that is written last says that all are done.
func (s *Store) migrateFirst(ctx context.Context, c *sql.Conn) error {
	if err := s.namesOlder(ctx, c); err != nil {
		return err
	}
	if err := s.exclude(ctx, c, formatFirst, formatFirst); err != nil {
		return err
	}
	for _, statement := range s.sql.moveOlder {
		_, err := c.ExecContext(ctx, statement)
		if class := s.dialect.classify(err); err != nil && class != noTable && class != exists {
			return s.explainAlter(statement, err)
		}
	}
	for _, statement := range s.sql.schema {
		if _, err := c.ExecContext(ctx, statement); err != nil && s.dialect.classify(err) != exists {
			return err
		}
	}
	meta, err := s.readMeta(ctx, c)
	if err != nil {
		return err
	}
	id := idOf(meta)
	moved, err := s.copyOlder(ctx, c, id)
	if err != nil {
		return err
	}
	for _, statement := range s.sql.fillTags {
		if _, err := c.ExecContext(ctx, statement); err != nil && s.dialect.classify(err) != exists {
			return s.explainAlter(statement, err)
		}
	}
	if _, err := s.exec(ctx, c, s.sql.setFormat, int64(formatNow), metaStoreID); err != nil {
		return err
	}
	s.migrated = fmt.Sprintf("tables of format %d became tables of format %d, with %d pools and workers; what is left of the former are %s", formatFirst, formatNow, moved, s.sql.olderKept)
	return nil
}

// namesOlder refuses while a node of the first version has a worker ID, by name: it has
// no heartbeat that would tell more.
func (s *Store) namesOlder(ctx context.Context, c *sql.Conn) error {
	rows, err := texts(ctx, c, s.sql.olderHeld)
	if err != nil && s.dialect.classify(err) == noTable {
		return nil // it was moved, and nobody can have extended a lease since
	}
	if err != nil || len(rows) == 0 {
		return err
	}
	until, err := strconv.ParseInt(rows[0][3], 10, 64)
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: node %q of an older version, which holds worker %s of pool %q until %s, may run on this store; stop it first",
		hapax.ErrStoreUnavailable, rows[0][2], rows[0][1], rows[0][0], time.UnixMilli(until).UTC().Format(time.RFC3339))
}

// copyOlder adds rows for the pools and workers of the first version, unless they are
// there or the migration has ended, and returns how many there were.
func (s *Store) copyOlder(ctx context.Context, c *sql.Conn, id string) (int, error) {
	pools, err := texts(ctx, c, s.sql.olderPools)
	if err != nil {
		return 0, err
	}
	workers, err := texts(ctx, c, s.sql.olderMoved)
	if err != nil {
		return 0, err
	}
	put := func(table, name string, value []byte) error {
		_, err := s.insert(ctx, c, s.sql.rowMove, table, name, value, id, int64(formatNow))
		return err
	}
	for _, row := range pools {
		if err := put(driver.RowOfPool(driver.Pool{Name: row[0], Layout: row[1]})); err != nil {
			return 0, err
		}
	}
	for _, row := range workers {
		w := driver.Worker{Pool: row[0], Holder: row[4]}
		for i, field := range []*int64{&w.ID, &w.Mark, &w.Token} {
			if *field, err = strconv.ParseInt(row[1+i], 10, 64); err != nil {
				return 0, fmt.Errorf("%w: worker %s of pool %q: %w", hapax.ErrStoreCorrupt, row[1], row[0], err)
			}
		}
		if err := put(driver.RowOfWorker(w)); err != nil {
			return 0, err
		}
	}
	return len(pools) + len(workers), nil
}

// wouldChange fails where New would change what rows are read from, and notes what else
// it would change.
func (s *Store) wouldChange(ctx context.Context, c *sql.Conn, format int64) error {
	if format == formatFirst {
		if err := s.namesOlder(ctx, c); err != nil {
			return err
		}
		return &driver.WouldChangeError{What: fmt.Sprintf("tables of format %d become tables of format %d: pools and workers become rows, and tags get new columns", formatFirst, formatNow)}
	}
	meta, err := s.readMeta(ctx, c)
	if err != nil && s.dialect.classify(err) != noTable {
		return err
	}
	if idOf(meta) == "" {
		return &driver.WouldChangeError{What: driver.NewStore}
	}
	if _, err := texts(ctx, c, s.sql.fenced); err != nil && s.dialect.classify(err) == noColumn {
		s.migrated = fmt.Sprintf("tables of format %d become tables of format %d: tags get the column token", formatSecond, formatNow)
	}
	return nil
}

// ExcludeOlder implements driver.Exclusive.
func (s *Store) ExcludeOlder(ctx context.Context) error {
	if s.excludes.Load() {
		return nil
	}
	err := s.once(ctx, "keep older versions from the store", func(ctx context.Context) error {
		return s.on(ctx, func(ctx context.Context, c *sql.Conn) error {
			format, err := s.formatOf(ctx, c)
			if err != nil || format == formatNow {
				return err
			}
			return s.exclude(ctx, c, formatSecond, formatNow)
		})
	})
	if err == nil {
		s.excludes.Store(true)
	}
	return err
}

// exclude gives the meta table a column that has to be filled in, and the ID another
// name: versions that know neither find no ID, and cannot make one.
func (s *Store) exclude(ctx context.Context, c *sql.Conn, is, format int64) error {
	for _, statement := range s.sql.addFormat {
		statement = strings.Replace(statement, "?", strconv.FormatInt(is, 10), 1)
		if _, err := c.ExecContext(ctx, statement); err != nil && s.dialect.classify(err) != exists {
			return s.explainAlter(statement, err)
		}
	}
	_, err := s.exec(ctx, c, s.sql.renameID, metaStoreID, format, metaStoreIDBefore)
	return err
}

// explainAlter says what to run where the account may not alter a table.
func (s *Store) explainAlter(statement string, err error) error {
	if s.dialect.classify(err) != forbidden {
		return err
	}
	return fmt.Errorf("%w: the account may not change what an earlier version made; run as its owner: %s: %w", hapax.ErrStoreUnavailable, statement, err)
}

// Migrated implements driver.Migrated.
func (s *Store) Migrated() string { return s.migrated }

// olderStatements are the queries on what older versions left, with names of tables
// still to be filled in.
func (s *statements) olderStatements(d *dialect) {
	s.format = "SELECT format FROM {meta} WHERE name IN ('" + metaStoreID + "', '" + metaStoreIDBefore + "') ORDER BY format DESC"
	s.setFormat = "UPDATE {meta} SET format = ? WHERE name = ?"
	s.renameID = "UPDATE {meta} SET name = ?, format = ? WHERE name = ?"
	s.addFormat = []string{
		"ALTER TABLE {meta} ADD COLUMN format BIGINT NOT NULL DEFAULT ?",
		"ALTER TABLE {meta} ALTER COLUMN format DROP DEFAULT",
	}
	s.olderWorkers = "SELECT 1 FROM {workers} LIMIT 1"
	s.olderHeld = "SELECT pool, id, holder, expires FROM {workers} WHERE expires > " + d.clock + " / 1000 ORDER BY expires DESC LIMIT 1"
	s.olderPools = "SELECT name, layout FROM {pools}_1"
	s.olderMoved = "SELECT pool, id, mark, epoch, holder FROM {workers}_1"
	s.olderKept = "{pools}_1 and {workers}_1"
	s.moveOlder = []string{"ALTER TABLE {pools} RENAME TO {pools}_1", "ALTER TABLE {workers} RENAME TO {workers}_1"}
	s.rowMove = "INSERT INTO {rows} (tbl, name, value) SELECT ?, ?, ? FROM {meta} WHERE name = '" + metaStoreID + "' AND value = ? AND format < ?"
	column := func(definition string) string { return "ALTER TABLE {tags} ADD COLUMN " + definition }
	s.fillTags = []string{
		column("delta BIGINT NOT NULL DEFAULT 1"), column("remainder BIGINT NOT NULL DEFAULT 0"), column("token BIGINT NOT NULL DEFAULT 0"),
		column("extra " + d.bytes + " NOT NULL DEFAULT ''"), column("key_hash " + d.hash + " NOT NULL DEFAULT ''"), column("run BIGINT NOT NULL DEFAULT 0"),
		"UPDATE {tags} SET delta = 0 WHERE kind = 'snowflake'",
	}
}
