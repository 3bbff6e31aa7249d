package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// metaStoreID is the row of the meta table that every store has.
const metaStoreID = "id"

// The rows of the meta table of a store that was made closed: see driver.Founding. The first
// comes with the ID, and counts until there is the second; rows are only ever added.
const (
	metaClosed = "closed"
	metaOpened = "opened"
)

// format is that of the tables. It stands with the ID, in each row of the meta table.
const format = 4

// startAnew is the way out where what was lost cannot be restored.
const startAnew = "drop all tables of the store and run hapax adopt --server URL, which raises the marks of the empty store to what the nodes know (in a program of your own: Options.Adopt, once)"

// bootstrap creates what is missing of a new store, and finds out the store's ID.
// What is missing of a store that has an ID was lost: an open store refuses it, and
// so does this, unless Adopt is set.
func (s *Store) bootstrap(ctx context.Context, c *sql.Conn, srv server) error {
	if srv.readOnly != "" {
		return readOnlyError(srv)
	}
	if s.opts.Look {
		if err := s.mayAll(ctx, c); err != nil {
			return err
		}
	}
	meta, err := s.isWhole(ctx, c)
	if err == nil && meta[metaStoreID] == "" {
		meta, err = s.complete(ctx, c)
	}
	if err != nil {
		return err
	}
	if meta[metaOpened] == "" {
		if err := driver.CheckClosed(ctx, meta[metaClosed]); err != nil {
			return err
		}
	}
	if srv.identity == "" {
		s.opts.Warn(WarnNoIdentity, "the server does not tell its identity: a failover is noticed by heartbeats alone")
	}
	for _, setting := range srv.lossy {
		s.opts.Warn(WarnNotDurable, "the server may lose what it acknowledged: "+setting)
	}
	if s.dialect.counts != nil && !s.opts.CloseDB && !s.opts.Look { // by a URL the handle is as it should be
		if err := s.dialect.counts(ctx, c, s); err != nil {
			return err
		}
	}
	s.id = meta[metaStoreID]
	if len(srv.settle) == 0 { // else the session is still to be settled
		if key, err := keyOf(c); err == nil {
			s.noteChecked(key, srv.identity)
		}
	}
	return nil
}

// isWhole returns what the meta table holds, where nothing is missing of a store of this format
// that has been used. It is one round trip: a distant server takes long for each.
func (s *Store) isWhole(ctx context.Context, c *sql.Conn) (map[string]string, error) {
	rows, err := texts(ctx, c, s.sql.whole, int64(format))
	switch s.dialect.classify(err) {
	case noTable, noColumn:
		return nil, nil
	}
	return pairs(rows), err
}

// complete creates what is missing of a store, and returns what the meta table holds.
func (s *Store) complete(ctx context.Context, c *sql.Conn) (map[string]string, error) {
	meta, err := s.assess(ctx, c)
	if err != nil || meta[metaStoreID] != "" {
		return meta, err
	}
	query, args := s.sql.metaInsert, []any{metaStoreID, driver.NewStoreID(ctx), int64(format)}
	if closed := driver.NewClosed(ctx); closed != "" {
		query, args = s.sql.metaClosed, append(args, metaClosed, closed, int64(format))
	}
	// Another process may have made the store meanwhile: then its ID counts, which is read next.
	if _, err := c.ExecContext(ctx, query, s.dialect.args(args)...); err != nil && s.dialect.classify(err) != exists {
		return nil, err
	}
	return s.readMeta(ctx, c)
}

// assess returns what the meta table holds, and creates the tables where there
// is no store yet.
func (s *Store) assess(ctx context.Context, c *sql.Conn) (map[string]string, error) {
	meta, err := s.readMeta(ctx, c)
	if err != nil && s.dialect.classify(err) != noTable {
		return nil, err
	}
	rows, lacks := texts(ctx, c, s.sql.anyRow)
	if lacks != nil && s.dialect.classify(lacks) != noTable {
		return nil, lacks
	}
	create, used := err != nil || lacks != nil, len(rows) > 0
	if used && meta[metaStoreID] == "" { // unless another process has just created it
		if meta, err = s.readMeta(ctx, c); err != nil && s.dialect.classify(err) != noTable {
			return nil, err
		}
	}
	id := meta[metaStoreID]
	switch {
	case s.opts.Adopt && !s.opts.Look:
	case id != "" && create:
		return nil, fmt.Errorf("%w: a table of store %s is gone; restore it, or "+startAnew, hapax.ErrStoreReplaced, id)
	case id == "" && used:
		return nil, fmt.Errorf("%w: its ID is gone, but its tables hold data; restore it, or "+startAnew, hapax.ErrStoreReplaced)
	case id == "" && (s.opts.Look || s.opts.Existing != nil && s.opts.Existing()):
		return nil, &driver.WouldChangeError{What: driver.NewStore}
	}
	if !create {
		return meta, nil
	}
	for _, statement := range s.sql.schema {
		// Another process may be creating the same table.
		if _, err := c.ExecContext(ctx, statement); err != nil && s.dialect.classify(err) != exists {
			return nil, err
		}
	}
	return s.readMeta(ctx, c)
}

// readMeta returns what the meta table holds. It refuses that of another format, and leaves it
// as it is.
func (s *Store) readMeta(ctx context.Context, c *sql.Conn) (map[string]string, error) {
	place := "the table " + s.opts.Prefix + "meta"
	rows, err := texts(ctx, c, s.sql.meta)
	if s.dialect.classify(err) == noColumn { // that of the first formats
		return nil, driver.CheckFormat(place, 0, format)
	}
	for _, row := range rows {
		found, _ := strconv.ParseInt(row[2], 10, 64) // what is no number is another format
		if err := driver.CheckFormat(place, found, format); err != nil {
			return nil, err
		}
	}
	return pairs(rows), err
}

func pairs(rows [][]string) map[string]string {
	all := make(map[string]string, len(rows))
	for _, row := range rows {
		all[row[0]] = row[1]
	}
	return all
}

// check fails unless the connection leads to the store that New found, on a server
// that accepts writes.
func (s *Store) check(ctx context.Context, c *sql.Conn) error {
	srv, err := s.dialect.inspect(ctx, c)
	if err != nil {
		return err
	}
	return s.judge(ctx, c, srv)
}

// judge is check on a server that has said what it is.
func (s *Store) judge(ctx context.Context, c *sql.Conn, srv server) error {
	if srv.readOnly != "" {
		return readOnlyError(srv)
	}
	meta, err := s.readMeta(ctx, c)
	if err != nil {
		if s.dialect.classify(err) == noTable {
			err = fmt.Errorf("%w: its tables are gone: %w", hapax.ErrStoreReplaced, err)
		}
		return err
	}
	if id := meta[metaStoreID]; id != s.id {
		return replacedError(id, s.id)
	}
	for _, statement := range srv.settle {
		// The statements are those of all kinds of clusters, and this server is of one.
		if _, err := c.ExecContext(ctx, statement); err != nil && s.dialect.classify(err) != noVariable {
			return err
		}
	}
	return nil
}

// notHere explains an answer in which the store's ID was missing.
func (s *Store) notHere(ctx context.Context, c *sql.Conn) error {
	if err := s.check(ctx, c); err != nil {
		return err
	}
	return fmt.Errorf("%w: the store was another one for a moment", hapax.ErrStoreUnavailable)
}

func replacedError(found, known string) error {
	if found == "" {
		return fmt.Errorf("%w: its ID is gone, it was %s", hapax.ErrStoreReplaced, known)
	}
	return fmt.Errorf("%w: its ID is %s, it was %s", hapax.ErrStoreReplaced, found, known)
}

func readOnlyError(srv server) error {
	return fmt.Errorf("%w: %s; use the primary", hapax.ErrStoreUnsafe, srv.readOnly)
}
