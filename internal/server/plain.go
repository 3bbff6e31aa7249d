package server

import (
	"context"
	"log/slog"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// OpenPlain opens the store that is configured without a guard, for commands that read and write its rows as
// they are: to look at it only, or to make it where it is not there, with the identity where
// one is given. Close must be called.
func OpenPlain(ctx context.Context, c Config, look bool, id string, log *slog.Logger) (driver.Store, error) {
	o := newOpener(c, log)
	if isVolatile(o.url) {
		return nil, &hapax.ValueError{Field: "store", Value: o.url, Allowed: "a store that outlives its process", Err: hapax.ErrInvalidArgument}
	}
	o.look = look
	if id != "" {
		ctx = driver.WithStoreID(ctx, id)
	}
	return o.open(ctx)
}
