package rpcapi

import (
	"context"
	"fmt"
	"net/http"

	"connectrpc.com/connect"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/internal/wire"
)

// named is an interceptor that names the server's store in every reply, as the client
// knows it, and refuses requests that are meant for another one.
type named struct {
	// known returns the name of the store for a client that knows it by want, which may be empty;
	// ErrStoreReplaced, with the server's, for one that knows another.
	known func(ctx context.Context, want string) (string, error)
}

// check returns the name of the store in the reply to a request; empty while that is not known.
func (n named) check(ctx context.Context, request http.Header) (id string, err error) {
	want := request.Get(wire.StoreHeader)
	id, err = n.known(ctx, want)
	if err != nil && want == "" {
		return "", nil // nothing was issued from a store that is not known
	}
	return id, err
}

// only has the store that is asked for be the one that there is.
func only(storeID func(context.Context) (string, error)) func(context.Context, string) (string, error) {
	return func(ctx context.Context, want string) (string, error) {
		id, err := storeID(ctx)
		if err == nil && want != "" && want != id {
			err = fmt.Errorf("%w: the request is for another store than the server's", hapax.ErrStoreReplaced)
		}
		return id, err
	}
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
			id, _ = n.known(ctx, "") // by now
		}
		if m, ok := res.Any().(*hapaxv1.GetStoreIDResponse); ok && id != "" && id != m.GetStoreId() {
			// By the name under which the client knows it, unless it is a store that the node has not met yet.
			if now, err := n.known(ctx, ""); err == nil && now == m.GetStoreId() {
				m.StoreId = id
			}
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
