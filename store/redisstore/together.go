package redisstore

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

var _ driver.Together = (*Store)(nil)

// HandsBackTogether implements driver.Together: not where each call waits for replicas, or
// goes to a place of its own.
func (s *Store) HandsBackTogether() bool { return s.opts.Wait == 0 && !s.Split() }

// HandBackAllWith implements driver.Together. Each hand-back is a script, and all of them
// are sent in one round trip.
func (s *Store) HandBackAllWith(ctx context.Context, p driver.Pulse, all []driver.HandBackOf) (given []bool, contact driver.Contact, err error) {
	if err := p.Check(); err != nil {
		return nil, contact, err
	}
	for _, h := range all {
		if err := driver.CheckHandBack(h.Allocation, h.Next); err != nil {
			return nil, contact, err
		}
	}
	given = make([]bool, len(all))
	contact, err = request(ctx, s, "hand back", func(ctx context.Context) (c driver.Contact, err error) {
		if err := s.rdb.ScriptLoad(ctx, handBackWithScript.source).Err(); err != nil {
			return c, err
		}
		pipe := s.rdb.Pipeline()
		cmds := make([]once, len(all))
		for i, h := range all {
			cmds[i] = once{redis.NewCmd(ctx, "evalsha", handBackWithScript.hash, 4, s.keys.store(), s.keys.rows(), s.keys.names(), s.keys.tag(h.Tag.Name),
				s.id, field(driver.TableBeats, p.Row), p.Was.Encode(), p.Now.Encode(), h.Grant.Hi, driver.HashKey(h.Key), h.Tag.Token, h.Next)}
			_ = pipe.Process(ctx, cmds[i])
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return c, err
		}
		for i, cmd := range cmds {
			list, _ := cmd.Val().([]any)
			r := reply(list)
			switch r.text(0) {
			case "":
				return c, fmt.Errorf("%w: redis: a script answered %T", hapax.ErrStoreCorrupt, cmd.Val())
			case saidReplaced:
				return c, s.same(r.text(1))
			case saidReplica:
				return c, errReplica()
			case saidLost:
				return c, s.rowsLost()
			}
			if c, err = contactOf(r); err != nil || !c.Met {
				return c, err
			}
			given[i] = r.text(0) == saidOK
		}
		return c, nil
	})
	return given, contact, err
}
