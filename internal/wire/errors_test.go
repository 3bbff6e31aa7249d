package wire

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api"
)

func TestEveryCodeHasAStatus(t *testing.T) {
	for _, code := range hapax.Codes() {
		if _, ok := statuses[code]; !ok {
			t.Errorf("code %s has no status", code)
		}
	}
	if len(statuses) != len(hapax.Codes()) {
		t.Errorf("%d statuses for %d codes", len(statuses), len(hapax.Codes()))
	}
}

// One table names every code, with its status over each protocol, and the page on gRPC
// leads there.
func TestEveryCodeIsDocumented(t *testing.T) {
	read := func(page string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	table := read("api-http.md")
	for _, code := range hapax.Codes() {
		if !strings.Contains(table, "`"+string(code)+"`") {
			t.Errorf("api-http.md does not name %s", code)
		}
	}
	if !strings.Contains(read("api-grpc.md"), "](api-http.md#errors)") {
		t.Error("api-grpc.md does not lead to the table of errors")
	}
}

// TestSecretsStayInside: what a store says of itself is not for clients.
func TestSecretsStayInside(t *testing.T) {
	for _, sentinel := range []*hapax.Error{hapax.ErrStoreUnavailable, hapax.ErrInternal, hapax.ErrStoreCorrupt, hapax.ErrStoreLocked} {
		e := Error(fmt.Errorf("%w: dial tcp db.internal:3306", sentinel))
		if strings.Contains(e.Message(), "db.internal") {
			t.Errorf("%s: the message is %q", sentinel.Code(), e.Message())
		}
	}
	if e := Error(fmt.Errorf("%w: %q", hapax.ErrTagDeleted, "orders")); !strings.Contains(e.Message(), "orders") {
		t.Errorf("the message is %q; it should name the tag", e.Message())
	}
}

func TestRoundTrip(t *testing.T) {
	full := &hapax.NoWorkerError{Pool: "p", Size: 7, NextFree: time.UnixMilli(1_700_000_000_123).UTC()}
	e, ok := errors.AsType[*hapax.NoWorkerError](Cause(Error(fmt.Errorf("asked: %w", full)), ""))
	if !ok || *e != *full {
		t.Errorf("%+v, want %+v", e, full)
	}
	long := &hapax.ValueError{Field: "f", Value: strings.Repeat("é", 10_000), Allowed: "less", Err: hapax.ErrInvalidID}
	v, ok := errors.AsType[*hapax.ValueError](Cause(Error(long), ""))
	if !ok || v.Err != error(hapax.ErrInvalidID) || len(v.Value.(string)) > maxText || !strings.HasPrefix(v.Value.(string), "éé") {
		t.Errorf("%+v", v)
	}
}

// TestForeignErrors: what is not said by a server of hapax is trouble, except
// that it wants credentials.
func TestForeignErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		want *hapax.Error
	}{
		{connect.NewError(connect.CodeUnavailable, errors.New("refused")), hapax.ErrStoreUnavailable},
		{connect.NewError(connect.CodeUnknown, errors.New("a page")), hapax.ErrStoreUnavailable},
		{connect.NewError(connect.CodeUnauthenticated, errors.New("who")), api.ErrUnauthenticated},
		{connect.NewError(connect.CodePermissionDenied, errors.New("no")), api.ErrPermissionDenied},
		{connect.NewError(connect.CodeInvalidArgument, errors.New("bad")), hapax.ErrInvalidArgument},
		{errors.New("plain"), hapax.ErrStoreUnavailable},
		{fmt.Errorf("%w: ours", hapax.ErrStoreReplaced), hapax.ErrStoreReplaced},
	} {
		if got := Cause(c.err, "http://a"); hapax.CodeOf(got) != c.want.Code() {
			t.Errorf("%v became %v; want %v", c.err, got, c.want)
		}
	}
	if got := Cause(connect.NewError(connect.CodeDeadlineExceeded, errors.New("late")), ""); !errors.Is(got, context.DeadlineExceeded) {
		t.Errorf("a deadline became %v", got)
	}
	if Cause(nil, "") != nil {
		t.Error("nil became an error")
	}
}
