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

// whose refuses a tag that another store has taken: both would issue its numbers. A store has
// its ID for good, also where it is copied or put back.
func (m imported) whose(name string, stores []string, closed bool) error {
	for _, store := range stores {
		if store != m.store {
			return fmt.Errorf("%w: tag %q was taken for store %s, and this is store %s: give that one, where --undo gives the tag back; if it is lost, put it back from a backup, under its own ID",
				hapax.ErrInvalidArgument, name, store[:min(len(store), maxShown)], m.store)
		}
	}
	if closed && len(stores) == 0 {
		return fmt.Errorf("%w: tag %q was closed by a build that noted no store: open it with --undo of that build, and repeat", hapax.ErrInvalidArgument, name)
	}
	return nil
}

// ofCollection tells of a document that another store has taken.
func (m imported) ofCollection(name string, err error) error {
	taken, ok := errors.AsType[*collection.TakenError](err)
	_, late := errors.AsType[*collection.LateError](err)
	switch {
	case late:
		return errLate(name)
	case !ok:
		return err
	case taken.By == "":
		return m.whose(name, nil, true)
	}
	return m.whose(name, []string{taken.By}, true)
}

// shut takes the hash and the documents of a tag for the store, and closes them, though not
// documents that are kept for programs that watch them. Each keeps its numbers in fields of
// its own, so that a move which is cut off here finds them again. One that is not there is
// made: the old service would make it anew, and begin at 1. Each notes the token of the tag, also
// where it is closed: an --undo that began before that token leaves it closed.
func (m imported) shut(ctx context.Context, s sources, name string, token int64) error {
	// The hash first: where the account may not change it, the documents are still as they were.
	err := m.change(ctx, s, name, func(ctx context.Context, p redis.Pipeliner, key string, h *cursor) error {
		if !h.closed {
			p.HSet(ctx, key, "cur", int64(closedAt), "max", int64(closedAt), fieldCur, h.cur, fieldMax, h.last, fieldStore, m.store)
		}
		p.HSet(ctx, key, fieldToken, max(token, h.token))
		return nil
	})
	switch {
	case err != nil:
	case m.keep:
		err = m.ofCollection(name, collection.Take(ctx, s.collection, name, m.store, token))
	default:
		err = m.ofCollection(name, collection.Close(ctx, s.collection, name, m.store, token))
	}
	if server, ok := errors.AsType[mongo.ServerError](err); err != nil && (strings.Contains(err.Error(), "NOPERM") || ok && server.HasErrorCode(unauthorized)) {
		return fmt.Errorf("%w: tag %q stays open for the old service, so that it is not moved: grant the account HSET on the hash and update on the collection: %w", hapax.ErrInvalidArgument, name, err)
	}
	return err
}

// unauthorized is MongoDB's code where the account lacks a right.
const unauthorized = 13

// reopen gives the sources of a tag that was withdrawn with a token back to the old service, which
// goes on above top, unless a move has shut them for a later token since.
func (m imported) reopen(ctx context.Context, s sources, name string, token, top int64) error {
	// The documents first: an old service that finds its hash open, and MongoDB away, goes on by
	// itself, and would then be given the same numbers by a document that is opened later.
	if err := m.ofCollection(name, collection.Reopen(ctx, s.collection, name, m.store, token, top)); err != nil {
		return err
	}
	return m.change(ctx, s, name, func(ctx context.Context, p redis.Pipeliner, key string, h *cursor) error {
		if h.store != "" && h.token >= token {
			return errLate(name)
		}
		set := []any{"cur", top, "max", top}
		switch step := m.found[name].step; {
		case !h.closed && h.cur > 0: // an old service has opened it
			set = []any{"cur", max(h.cur, top), "max", max(h.end, top)}
		case step > 0:
			set = append(set, "step", step) // a hash that the move made has none
		}
		p.HSet(ctx, key, set...)
		p.HDel(ctx, key, fieldCur, fieldMax, fieldStore, fieldToken)
		return nil
	})
}

func errLate(name string) error {
	return fmt.Errorf("%w: an --apply that ran meanwhile has shut tag %q: repeat this if it is still to be opened", hapax.ErrInvalidArgument, name)
}

// change writes the hash of a tag in one step, if no other store has taken it: the old service
// may take numbers from an open one meanwhile, and another command may be at it.
func (m imported) change(ctx context.Context, s sources, name string, write func(context.Context, redis.Pipeliner, string, *cursor) error) error {
	key := s.prefix + name + s.suffix
	once := func(tx *redis.Tx) error {
		h, err := readHash(ctx, tx, key)
		if err != nil {
			return err
		}
		if h == nil {
			h = new(cursor)
		}
		var stores []string
		if h.store != "" {
			stores = []string{h.store}
		}
		if err := m.whose(name, stores, h.closed); err != nil {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			return write(ctx, p, key, h)
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
