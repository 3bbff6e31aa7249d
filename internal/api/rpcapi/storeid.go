package rpcapi

import (
	"context"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/wire"
)

// named is an interceptor that names the server's store in every reply, and
// refuses requests that are meant for another one.
type named struct {
	known func(context.Context) (string, error)
}

// check compares the store that a request names, if it names one, and returns the server's;
// empty while that is not known.
func (n named) check(ctx context.Context, request http.Header) (id string, err error) {
	want := request.Get(wire.StoreHeader)
	id, err = n.known(ctx)
	switch {
	case err != nil && want == "":
		return "", nil // nothing was issued from a store that is not known
	case err != nil:
		return "", err
	case want != "" && want != id:
		return id, fmt.Errorf("%w: the request is for another store than the server's", hapax.ErrStoreReplaced)
	}
	return id, nil
}

// WrapUnary implements connect.Interceptor.
func (n named) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		id, err := n.check(ctx, req.Header())
		if err != nil {
			return nil, err
		}
		res, err := next(ctx, req)
		if err != nil {
			return nil, err
		}
		if id == "" {
			id, _ = n.known(ctx) // by now
		}
		if id != "" {
			res.Header().Set(wire.StoreHeader, id)
		}
		return res, nil
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (named) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (n named) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		id, err := n.check(ctx, conn.RequestHeader())
		if id != "" {
			conn.ResponseHeader().Set(wire.StoreHeader, id)
		}
		if err != nil {
			return err
		}
		return next(ctx, conn)
	}
}
