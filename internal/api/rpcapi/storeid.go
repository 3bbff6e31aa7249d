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

// check compares the store that a request names, if it names one.
func (n named) check(ctx context.Context, request, reply http.Header) error {
	id, err := n.known(ctx)
	if err != nil {
		if request.Get(wire.StoreHeader) != "" {
			return err
		}
		return nil // nothing was issued from a store that is not known
	}
	reply.Set(wire.StoreHeader, id)
	if want := request.Get(wire.StoreHeader); want != "" && want != id {
		return fmt.Errorf("%w: the request is for another store than the server's", hapax.ErrStoreReplaced)
	}
	return nil
}

// WrapUnary implements connect.Interceptor.
func (n named) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		header := http.Header{}
		if err := n.check(ctx, req.Header(), header); err != nil {
			return nil, err
		}
		res, err := next(ctx, req)
		if err != nil {
			return nil, err
		}
		if id := header.Get(wire.StoreHeader); id != "" {
			res.Header().Set(wire.StoreHeader, id)
		} else if id, err := n.known(ctx); err == nil { // known by now
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
		if err := n.check(ctx, conn.RequestHeader(), conn.ResponseHeader()); err != nil {
			return err
		}
		return next(ctx, conn)
	}
}
