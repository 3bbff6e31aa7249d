package redismongo

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/compat/collection"
)

// doorTries bounds how often a hash that others write is tried again.
const doorTries = 100

// closes tells how the sources of a tag are closed for the old service.
func (m imported) closes() string {
	if m.keep {
		return "cur and max of its hash are the largest number"
	}
	return "cur and max of its hash are the largest number, and max of its document is a text"
}

// shut closes the hash of a tag, and its documents unless they are kept for programs that
// watch them. Each keeps its numbers in fields of its own, so that a move which is cut off
// here finds them again. One that is not there is made: the old service would make it anew,
// and begin at 1.
func (m imported) shut(ctx context.Context, s sources, name string) error {
	err := s.change(ctx, name, false, func(ctx context.Context, p redis.Pipeliner, key string, h *cursor) {
		p.HSet(ctx, key, "cur", int64(closedAt), "max", int64(closedAt), fieldCur, h.cur, fieldMax, h.last)
	})
	if err == nil && !m.keep {
		err = collection.Close(ctx, s.collection, name)
	}
	if server, ok := errors.AsType[mongo.ServerError](err); err != nil && (strings.Contains(err.Error(), "NOPERM") || ok && server.HasErrorCode(unauthorized)) {
		return fmt.Errorf("%w: tag %q stays open for the old service, so that it is not moved: grant the account HSET on the hash and update on the collection: %w", hapax.ErrInvalidArgument, name, err)
	}
	return err
}

// unauthorized is MongoDB's code where the account lacks a right.
const unauthorized = 13

// reopen gives the sources of a tag back to the old service, which goes on above top.
func (m imported) reopen(ctx context.Context, s sources, name string, top int64) error {
	set := []any{"cur", top, "max", top}
	if step := m.found[name].step; step > 0 {
		set = append(set, "step", step) // a hash that the move made has none
	}
	err := s.change(ctx, name, true, func(ctx context.Context, p redis.Pipeliner, key string, _ *cursor) {
		p.HSet(ctx, key, set...)
		p.HDel(ctx, key, fieldCur, fieldMax)
	})
	if err == nil {
		err = collection.Reopen(ctx, s.collection, name, top)
	}
	return err
}

// change writes the hash of a tag in one step, if it is closed or open as is said, or not
// there: the old service may take numbers from an open one meanwhile.
func (s sources) change(ctx context.Context, name string, closed bool, write func(context.Context, redis.Pipeliner, string, *cursor)) error {
	key := s.prefix + name + s.suffix
	once := func(tx *redis.Tx) error {
		h, err := readHash(ctx, tx, key)
		switch {
		// It is as it is to be, as after a move that was cut off; one that is open may have gone on since.
		case err != nil || h != nil && h.closed != closed:
			return err
		case h == nil:
			h = new(cursor)
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			write(ctx, p, key, h)
			return nil
		})
		return err
	}
	for range doorTries {
		switch err := s.rdb.Watch(ctx, once, key); {
		case errors.Is(err, redis.TxFailedErr):
		case err == nil, errors.Is(err, hapax.ErrInvalidArgument):
			return err
		default:
			return fmt.Errorf("%w: redis: %w", hapax.ErrStoreUnavailable, err)
		}
	}
	return fmt.Errorf("%w: the hash %s was written each of the %d times that it was to be changed: stop the old service first", hapax.ErrStoreUnsafe, key, doorTries)
}
