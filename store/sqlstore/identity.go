package sqlstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/hapax-id/hapax"
)

// Rows of the meta table.
const (
	metaStoreID  = "store_id"
	metaPrimary  = "primary"  // identity of the server that is the primary
	metaFailover = "failover" // whether another primary may be adopted: one of the values below

	failoverAdopt  = "adopt"
	failoverRefuse = "refuse"
)

// bootstrap creates what is missing and returns the store's ID.
func (s *Store) bootstrap(ctx context.Context, conn session) (string, error) {
	srv, err := s.dialect.inspect(ctx, conn)
	if err != nil {
		return "", err
	}
	if srv.readOnly != "" {
		return "", readOnlyError(srv)
	}
	if err := s.createTables(ctx, conn); err != nil {
		return "", err
	}
	if err := s.setDefault(ctx, conn, metaStoreID, rand.Text()); err != nil {
		return "", err
	}
	if srv.identity != "" {
		if err := s.setDefault(ctx, conn, metaPrimary, srv.identity); err != nil {
			return "", err
		}
		if err := s.setDefault(ctx, conn, metaFailover, srv.failover()); err != nil {
			return "", err
		}
	} else {
		s.opts.Warn(WarnNoIdentity, "the server does not tell its identity; a failover goes unnoticed")
	}
	for _, setting := range srv.lossy {
		s.opts.Warn(WarnNotDurable, "the server may lose what it acknowledged: "+setting)
	}
	meta, err := s.readMeta(ctx, conn)
	if err != nil {
		return "", err
	}
	return meta[metaStoreID], s.checkPrimary(ctx, conn, srv, meta, s.opts.Adopt)
}

// createTables creates the tables unless all of them are there, so that no
// right to create is needed then.
func (s *Store) createTables(ctx context.Context, conn session) error {
	var err error
	for _, query := range s.sql.tables {
		if _, err = conn.query(ctx, query); err != nil {
			break
		}
	}
	if err == nil || s.dialect.classify(err) != noTable {
		return err
	}
	for _, statement := range s.sql.schema {
		// Another process may be creating the same table.
		if err := conn.exec(ctx, statement); err != nil && s.dialect.classify(err) != exists {
			return err
		}
	}
	return nil
}

// setDefault adds a row to the meta table unless there is one.
func (s *Store) setDefault(ctx context.Context, conn session, name, value string) error {
	rows, err := conn.query(ctx, s.sql.meta, s.dialect.args([]any{name})...)
	if err != nil || len(rows) > 0 {
		return err
	}
	err = conn.exec(ctx, s.sql.metaInsert, s.dialect.args([]any{name, value})...)
	if err != nil && s.dialect.classify(err) == exists {
		return nil
	}
	return err
}

func (s *Store) readMeta(ctx context.Context, conn session) (map[string]string, error) {
	rows, err := conn.query(ctx, s.sql.metaAll)
	meta := make(map[string]string, len(rows))
	for _, row := range rows {
		meta[row[0]] = row[1]
	}
	return meta, err
}

// verify checks that the connection leads to the store that Open found, on the
// primary.
func (s *Store) verify(ctx context.Context, conn session) error {
	srv, err := s.dialect.inspect(ctx, conn)
	if err != nil {
		return err
	}
	if srv.readOnly != "" {
		return readOnlyError(srv)
	}
	meta, err := s.readMeta(ctx, conn)
	if err != nil {
		if s.dialect.classify(err) == noTable {
			err = fmt.Errorf("%w: its tables are gone: %w", hapax.ErrStoreReplaced, err)
		}
		return err
	}
	if meta[metaStoreID] != s.id {
		return replacedError(meta[metaStoreID], s.id)
	}
	return s.checkPrimary(ctx, conn, srv, meta, false)
}

// checkPrimary compares the server with the recorded primary and decides about
// another one.
func (s *Store) checkPrimary(ctx context.Context, conn session, srv server, meta map[string]string, adopt bool) error {
	known := meta[metaPrimary]
	if srv.identity == "" || known == "" {
		return nil
	}
	if srv.identity == known {
		return s.setMeta(ctx, conn, metaFailover, meta[metaFailover], srv.failover())
	}
	if !adopt && (meta[metaFailover] != failoverAdopt || !sameSystem(srv.identity, known)) {
		return fmt.Errorf("%w: the primary is %s, it was %s; a promoted replica may lack acknowledged marks: raise them, then open the store with Adopt once",
			hapax.ErrStoreReplaced, srv.identity, known)
	}
	if err := s.setMeta(ctx, conn, metaPrimary, known, srv.identity); err != nil {
		return err
	}
	s.opts.Warn(WarnPrimaryChanged, fmt.Sprintf("the primary is %s, it was %s", srv.identity, known))
	return s.setMeta(ctx, conn, metaFailover, meta[metaFailover], srv.failover())
}

func (s *Store) setMeta(ctx context.Context, conn session, name, from, to string) error {
	if from == to {
		return nil
	}
	return conn.exec(ctx, s.sql.metaUpdate, s.dialect.args([]any{to, name, from})...)
}

// failover tells what the store should do should this server be replaced.
func (srv server) failover() string {
	if srv.quorum {
		return failoverAdopt
	}
	return failoverRefuse
}

// sameSystem tells whether two primaries continue the same data: what comes
// before the slash names it.
func sameSystem(a, b string) bool {
	a, _, _ = strings.Cut(a, "/")
	b, _, _ = strings.Cut(b, "/")
	return a == b
}

func readOnlyError(srv server) error {
	return fmt.Errorf("%w: %s; use the primary", hapax.ErrStoreUnsafe, srv.readOnly)
}
