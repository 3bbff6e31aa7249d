package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/hapax-id/hapax/bench/internal/host"
	"github.com/hapax-id/hapax/bench/internal/load"
	"github.com/hapax-id/hapax/internal/service/auth"
	"github.com/hapax-id/hapax/internal/testservers"
)

// A contender is a source of numbers, and how it is asked.
type contender struct {
	name, durable string
	connect       func(ctx context.Context) (call load.Caller, end func(), err error)
}

// servers are what was started here. The databases end with this process.
type servers []*host.Server

func (s *servers) stop() {
	for _, one := range *s {
		one.Stop()
	}
}

const (
	synced   = "yes: each grant is synced to disk"
	inMemory = "no"
	get      = "GET /v1/tags/calls/next HTTP/1.1\r\nHost: 127.0.0.1\r\n"
)

// contenders starts all servers; what they keep is below dir.
func contenders(ctx context.Context, s *servers, dir string) ([]contender, error) {
	hapax := func(name, config string, flags ...string) (*host.Server, error) {
		own := filepath.Join(dir, name)
		file := filepath.Join(own, "hapax.yaml")
		if err := errors.Join(os.Mkdir(own, 0o700), os.WriteFile(file, []byte(config), 0o600)); err != nil {
			return nil, err
		}
		server, err := host.StartHapax(ctx, own, append([]string{"--config", file}, flags...)...)
		if err != nil {
			return nil, fmt.Errorf("hapax, %s: %w", name, err)
		}
		*s = append(*s, server)
		return server, nil
	}
	redis := func(name string, flags ...string) (*host.Server, error) {
		own := filepath.Join(dir, name)
		if err := os.Mkdir(own, 0o700); err != nil {
			return nil, err
		}
		server, err := host.StartRedis(ctx, own, flags...)
		if err == nil {
			*s = append(*s, server)
		}
		return server, err
	}
	cert, key, err := host.Certificate(dir)
	if err != nil {
		return nil, err
	}
	trusted, err := trust(cert)
	if err != nil {
		return nil, err
	}
	token := auth.NewToken()
	tokens := "tokens: {bench: {hash: '" + auth.HashToken(token) + "'}}\n"
	bearer := get + "Authorization: Bearer " + token + "\r\n\r\n"
	postgres, err := engine(ctx, "POSTGRES")
	if err != nil {
		return nil, err
	}
	mariaDB, err := engine(ctx, "MYSQL")
	if err != nil {
		return nil, err
	}
	nextval, err := openSQL(ctx, "pgx", postgres.URL, "CREATE SEQUENCE bench")
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(mariaDB.URL)
	if err != nil {
		return nil, err
	}
	ticket, err := openSQL(ctx, "mysql", u.User.Username()+"@tcp("+u.Host+")"+u.Path,
		"CREATE TABLE bench (n BIGINT NOT NULL) ENGINE=InnoDB", "INSERT INTO bench VALUES (0)", "CREATE SEQUENCE bench_sequence")
	if err != nil {
		return nil, err
	}

	open, err := hapax("open", "")
	if err != nil {
		return nil, err
	}
	closed, err := hapax("tokens", tokens)
	if err != nil {
		return nil, err
	}
	encrypted, err := hapax("tls", tokens, "--tls-cert", cert, "--tls-key", key)
	if err != nil {
		return nil, err
	}
	shared, err := hapax("postgres", tokens, "--store", postgres.URL)
	if err != nil {
		return nil, err
	}
	volatile, err := redis("redis-memory", "--appendonly", "no")
	if err != nil {
		return nil, err
	}
	durable, err := redis("redis-always", "--appendonly", "yes", "--appendfsync", "always")
	if err != nil {
		return nil, err
	}
	authenticate := "AUTH " + token + "\r\n"
	return []contender{
		{"hapax, `GET …/next`", synced, byHTTP(open, get+"\r\n", nil)},
		{"hapax, `GET …/next`, token", synced, byHTTP(closed, bearer, nil)},
		{"hapax, `GET …/next`, token, TLS", synced, byHTTP(encrypted, bearer, trusted)},
		{"hapax, Redis protocol, `INCR`", synced, byRESP(open, "")},
		{"hapax, Redis protocol, `INCR`, token", synced, byRESP(closed, authenticate)},
		{"hapax over PostgreSQL, `INCR`, token", synced, byRESP(shared, authenticate)},
		{"redis-server, `INCR`, `appendonly no`", inMemory, byRESP(volatile, "")},
		{"redis-server, `INCR`, `appendfsync always`", "yes", byRESP(durable, "")},
		{"PostgreSQL, `SELECT nextval('s')`", "yes", bySQL(nextval, "SELECT nextval('bench')")},
		{"MariaDB, `SELECT NEXTVAL(s)`", "yes", bySQL(ticket, "SELECT NEXTVAL(bench_sequence)")},
		{"MariaDB, `UPDATE t SET n = LAST_INSERT_ID(n + 1)`", "yes", byUpdate(ticket, "UPDATE bench SET n = LAST_INSERT_ID(n + 1)")},
	}, nil
}

func engine(ctx context.Context, name string) (*testservers.Server, error) {
	for _, e := range testservers.Engines {
		if strings.HasSuffix(e.Variable(), name) {
			return e.Start(ctx)
		}
	}
	return nil, errors.New("unknown engine " + name)
}

func trust(cert string) (*tls.Config, error) {
	text, err := os.ReadFile(cert)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13}, nil
}

// byHTTP makes one request again and again, by TLS if there is a configuration.
func byHTTP(s *host.Server, request string, config *tls.Config) func(context.Context) (load.Caller, func(), error) {
	return func(ctx context.Context) (load.Caller, func(), error) {
		nc, err := dial(ctx, s.HTTP, config)
		if err != nil {
			return nil, nil, err
		}
		r, message := bufio.NewReader(nc), []byte(request)
		return func(context.Context) error {
			if _, err := nc.Write(message); err != nil {
				return err
			}
			return readResponse(r)
		}, func() { _ = nc.Close() }, nil
	}
}

// readResponse reads a good answer with a body of known length. net/http would take more
// of the processor than the servers here.
func readResponse(r *bufio.Reader) error {
	length := 0
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimSpace(line)
		if first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
			return fmt.Errorf("answered %q", line)
		}
		if value, is := bytes.CutPrefix(line, []byte("Content-Length: ")); is {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return err
			}
		}
		if len(line) == 0 {
			_, err := io.CopyN(io.Discard, r, int64(length))
			return err
		}
	}
}

// byRESP increments a key, after an inline command, if there is one, such as AUTH.
func byRESP(s *host.Server, first string) func(context.Context) (load.Caller, func(), error) {
	return func(ctx context.Context) (load.Caller, func(), error) {
		nc, err := dial(ctx, "127.0.0.1:"+s.RESP, nil)
		if err != nil {
			return nil, nil, err
		}
		r, message := bufio.NewReader(nc), []byte("*2\r\n$4\r\nINCR\r\n$5\r\ncalls\r\n")
		ask := func(message []byte, want byte) error {
			if _, err := nc.Write(message); err != nil {
				return err
			}
			line, err := r.ReadSlice('\n')
			if err == nil && line[0] != want {
				err = fmt.Errorf("answered %q", line)
			}
			return err
		}
		if first != "" {
			if err := ask([]byte(first), '+'); err != nil {
				return nil, nil, errors.Join(err, nc.Close())
			}
		}
		return func(context.Context) error { return ask(message, ':') }, func() { _ = nc.Close() }, nil
	}
}

func dial(ctx context.Context, address string, config *tls.Config) (net.Conn, error) {
	if config != nil {
		return (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

func openSQL(ctx context.Context, driver, dsn string, statements ...string) (*sql.DB, error) {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxIdleConns(connections)
	for _, s := range statements {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
	}
	return db, nil
}

// bySQL has a prepared query return a number.
func bySQL(db *sql.DB, query string) func(context.Context) (load.Caller, func(), error) {
	return prepared(db, query, func(ctx context.Context, s *sql.Stmt) error {
		var n int64
		return s.QueryRowContext(ctx).Scan(&n)
	})
}

// byUpdate has a prepared statement tell the number that it made.
func byUpdate(db *sql.DB, statement string) func(context.Context) (load.Caller, func(), error) {
	return prepared(db, statement, func(ctx context.Context, s *sql.Stmt) error {
		res, err := s.ExecContext(ctx)
		if err != nil {
			return err
		}
		_, err = res.LastInsertId()
		return err
	})
}

func prepared(db *sql.DB, text string, call func(context.Context, *sql.Stmt) error) func(context.Context) (load.Caller, func(), error) {
	return func(ctx context.Context) (load.Caller, func(), error) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return nil, nil, err
		}
		s, err := conn.PrepareContext(ctx, text)
		if err != nil {
			return nil, nil, errors.Join(err, conn.Close())
		}
		return func(ctx context.Context) error { return call(ctx, s) }, func() { _, _ = s.Close(), conn.Close() }, nil
	}
}
