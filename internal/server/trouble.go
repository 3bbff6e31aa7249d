package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/redis/go-redis/v9"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/hapax-id/hapax/store/driver"
)

// What keeps a store from being used, beside that it cannot be reached.
const (
	wrongPassword = "the store refuses the user or the password"
	noRight       = "the store's user may not do that"
	noDatabase    = "the store's database does not exist"
	noHost        = "the store's host is not known"
	noFile        = "a file does not exist"
	noFileRight   = "a file may not be used by this user"
	notTrusted    = "the store's certificate is not trusted"
)

// explain says of a store that cannot be opened what is the matter, where the
// driver knows better than that it cannot be reached.
func (o opener) explain(err error) error {
	if err == nil {
		return nil
	}
	what, detail := diagnose(err)
	if what == "" && errors.Is(err, context.DeadlineExceeded) {
		if _, told := errors.AsType[*net.OpError](err); !told && !errors.Is(err, driver.ErrSilent) {
			err = fmt.Errorf("%w: %w", err, unreached(o.url))
			what, detail = diagnose(err)
		}
	}
	if what == "" {
		return err
	}
	return &explained{what + ": " + strings.TrimSuffix(detail.Error(), "\n"), err}
}

// Answers reports whether an error of opening a store is the answer of one that is there: it refuses a password
// or a right, or shows a certificate that is not trusted. One that takes a connection, and is silent, is there, too: it
// may be paused.
func Answers(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); errors.Is(err, driver.ErrSilent) || ok && op.Op == "read" && op.Timeout() {
		return true
	}
	what, _ := diagnose(err)
	return what == wrongPassword || what == noRight || what == notTrusted || what == noFileRight
}

// unreached tells what becomes of a connection with the hosts of a URL, for drivers that
// had no time left to say why they had none.
func unreached(store string) error {
	u, err := parseStoreURL(store)
	if err != nil {
		return err
	}
	hosts := strings.Split(u.hosts, ",")
	for _, host := range hosts {
		if _, _, err := net.SplitHostPort(host); err != nil {
			return errNothing // the port is the driver's to know
		}
	}
	return driver.Unreached(hosts, nil)
}

var errNothing = errors.New("no answer came")

type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return "hapax: " + e.text }

func (e *explained) Unwrap() error { return e.err }

// diagnose returns what is the matter and the error that tells it; "" if that is
// not known.
func diagnose(err error) (what string, detail error) {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		switch e.Number {
		case 1045, 1698:
			return wrongPassword, e
		case 1044, 1142, 1143, 1227, 1370:
			return noRight, e
		case 1049:
			return noDatabase, e
		}
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch e.Code {
		case "28P01", "28000":
			return wrongPassword, e
		case "42501":
			return noRight, e
		case "3D000":
			return noDatabase, e
		}
	}
	if e, ok := errors.AsType[redis.Error](err); ok {
		switch {
		case redis.HasErrorPrefix(e, "WRONGPASS"), redis.HasErrorPrefix(e, "NOAUTH"):
			return wrongPassword, e
		case redis.HasErrorPrefix(e, "NOPERM"):
			return noRight, e
		}
	}
	if e, ok := errors.AsType[mongo.CommandError](err); ok {
		switch e.Code {
		case 18:
			return wrongPassword, e
		case 13:
			return noRight, e
		}
	}
	for _, known := range []struct {
		what string
		is   []error
	}{
		{wrongPassword, []error{rpctypes.ErrAuthFailed, rpctypes.ErrUserEmpty, zk.ErrAuthFailed}},
		{noRight, []error{rpctypes.ErrPermissionDenied, zk.ErrNoAuth}},
		{noFile, []error{fs.ErrNotExist}},
		{noFileRight, []error{fs.ErrPermission}},
	} {
		if slices.ContainsFunc(known.is, func(target error) bool { return errors.Is(err, target) }) {
			return known.what, innermost(err)
		}
	}
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return notTrusted, e
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound {
		return noHost, e
	}
	return "", nil
}

// innermost returns the error of a file inside err, or err if there is none.
func innermost(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e
	}
	return err
}
