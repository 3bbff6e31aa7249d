package server

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5/pgconn"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/hapax-id/hapax"
)

// A store that takes connections and is silent is there, whatever it is: a paused one may go on. One that takes none
// is not.
func TestAnswers(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the system takes connections for it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() }) // after the subtests, which run later
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	for _, url := range []string{"mysql://u:p@HOST/x", "postgres://u:p@HOST/x", "redis://HOST/0", "mongodb://HOST/x", "etcd://HOST", "zk://HOST/x"} {
		for l, want := range map[net.Listener]bool{silent: true, closed: false} {
			t.Run(fmt.Sprintf("%.4s %t", url, want), func(t *testing.T) {
				t.Parallel()
				c, err := LoadStore(strings.ReplaceAll(url, "HOST", l.Addr().String()), func(string) (string, bool) { return "", false })
				if err != nil {
					t.Fatal(err)
				}
				if _, err = OpenPlain(t.Context(), c, Looking, slog.New(slog.DiscardHandler)); err == nil || Answers(err) != want {
					t.Errorf("%v: an answer: %t", err, Answers(err))
				}
			})
		}
	}
}

// What the driver knows is said first, and the error stays what it was.
func TestExplain(t *testing.T) {
	for _, test := range []struct {
		cause error
		want  string
	}{
		{&mysql.MySQLError{Number: 1045, Message: "Access denied"}, wrongPassword},
		{&mysql.MySQLError{Number: 1142, Message: "INSERT command denied"}, noRight},
		{&mysql.MySQLError{Number: 1049, Message: "Unknown database"}, noDatabase},
		{&pgconn.PgError{Code: "28P01"}, wrongPassword},
		{&pgconn.PgError{Code: "42501"}, noRight},
		{&pgconn.PgError{Code: "3D000"}, noDatabase},
		{mongo.CommandError{Code: 18}, wrongPassword},
		{mongo.CommandError{Code: 13}, noRight},
		{rpctypes.ErrAuthFailed, wrongPassword},
		{zk.ErrNoAuth, noRight},
		{&fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}, noFile},
		{&fs.PathError{Op: "open", Path: "x", Err: fs.ErrPermission}, noFileRight},
		{&net.DNSError{Name: "h", IsNotFound: true}, noHost},
		{errors.New("connection refused"), "the store cannot be reached"},
	} {
		err := opener{}.explain(fmt.Errorf("%w: open: %w", hapax.ErrStoreUnavailable, test.cause))
		if !strings.HasPrefix(err.Error(), "hapax: "+test.want) || !errors.Is(err, hapax.ErrStoreUnavailable) {
			t.Errorf("%v: %v", test.cause, err)
		}
	}
	if err := (opener{}).explain(nil); err != nil {
		t.Error(err)
	}
}
