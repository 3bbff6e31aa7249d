package redisstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// The formats of the keys, beside the present one.
const (
	formatFirst  = "1"        // pools and workers under keys of their own
	formatMoving = "1, to 3"  // it is being migrated
	formatSecond = "2"        // the same keys, in a store that 04c10f7 could use
	movedPools   = "pools-1"  // where that leaves the first version's pools
	movedNote    = "format 3" // what stands in their place: text, which no program of that version can use
)

var (
	_ driver.Exclusive = (*Store)(nil)
	_ driver.Migrated  = (*Store)(nil)
)

// Keys of the first version.
func (k keys) poolsBefore() string              { return string(k) + "{hapax}:pools" }
func (k keys) poolsMoved() string               { return string(k) + "{hapax}:" + movedPools }
func (k keys) workersBefore(pool string) string { return string(k) + "workers:" + pool }

// Migrated implements driver.Migrated.
func (s *Store) Migrated() string { return s.migrated }

// ExcludeOlder implements driver.Exclusive.
func (s *Store) ExcludeOlder(ctx context.Context) error {
	_, err := request(ctx, s, "keep older versions from the store", func(ctx context.Context) (reply, error) {
		return s.eval(ctx, formatScript, []string{s.keys.store()}, format)
	})
	return err
}

// migrate moves what the first version left into rows, and fills in what it did not know
// of tags. Programs of that version cannot write workers any more once their key has no
// store ID. Each step may be repeated, also by others at the same time; the format that is
// written last says that all are done.
func (s *Store) migrate(ctx context.Context) error {
	pools, err := s.poolsOlder(ctx)
	if err != nil {
		return err
	}
	if err := s.namesOlder(ctx, pools); err != nil {
		return err
	}
	if _, err := s.eval(ctx, movePoolsScript, []string{s.keys.store(), s.keys.poolsBefore(), s.keys.poolsMoved()}, formatMoving, movedNote); err != nil {
		return err
	}
	if pools, err = s.poolsOlder(ctx); err != nil {
		return err
	}
	moved := len(pools)
	for pool, layout := range pools {
		if err := s.moveRow(ctx)(driver.RowOfPool(driver.Pool{Name: pool, Layout: layout})); err != nil {
			return err
		}
		n, err := s.moveWorkers(ctx, pool)
		if err != nil {
			return err
		}
		moved += n
	}
	tags, err := s.fillTags(ctx)
	if err != nil {
		return err
	}
	if _, err := s.eval(ctx, formatScript, []string{s.keys.store()}, format); err != nil {
		return err
	}
	s.migrated = fmt.Sprintf("keys of format %s became keys of format %s: %d tags, %d pools and workers", formatFirst, format, tags, moved)
	return nil
}

// wouldChange fails where Open would change something.
func (s *Store) wouldChange(ctx context.Context) error {
	m, err := s.rdb.HGetAll(ctx, s.keys.store()).Result()
	if err != nil {
		return err
	}
	switch m["format"] {
	case "":
		return &driver.WouldChangeError{What: driver.NewStore}
	case formatFirst, formatMoving:
		pools, err := s.poolsOlder(ctx)
		if err == nil {
			err = s.namesOlder(ctx, pools)
		}
		if err != nil {
			return err
		}
		return &driver.WouldChangeError{What: fmt.Sprintf("keys of format %s become keys of format %s: pools and workers become rows, and tags get new fields", formatFirst, format)}
	}
	return nil
}

// poolsOlder returns the layouts of the first version's pools, wherever they are now.
func (s *Store) poolsOlder(ctx context.Context) (map[string]string, error) {
	pools, err := s.rdb.HGetAll(ctx, s.keys.poolsMoved()).Result()
	if err != nil || len(pools) > 0 {
		return pools, err
	}
	pools, err = s.rdb.HGetAll(ctx, s.keys.poolsBefore()).Result()
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil, nil // there were none
	}
	return pools, err
}

// namesOlder refuses while a node of the first version has a worker ID, by name: it has
// no heartbeat that would tell more.
func (s *Store) namesOlder(ctx context.Context, pools map[string]string) error {
	now, err := s.rdb.Time(ctx).Result()
	if err != nil {
		return err
	}
	for _, pool := range slices.Sorted(maps.Keys(pools)) {
		fields, err := s.rdb.HGetAll(ctx, s.keys.workersBefore(pool)).Result()
		if err != nil {
			return err
		}
		if fields["store"] == "" { // it was moved, and nobody can have extended a lease since
			continue
		}
		for id, row := range fields {
			if id == "store" {
				continue
			}
			w, until, err := s.decodeOlder(pool, id, row)
			if err != nil {
				return err
			}
			if until.After(now) {
				return fmt.Errorf("%w: redis: node %q of an older version, which holds worker %d of pool %q until %s, may run on this store; stop it first",
					hapax.ErrStoreUnavailable, w.Holder, w.ID, pool, until.UTC().Format(time.RFC3339))
			}
		}
	}
	return nil
}

// decodeOlder reads a worker of the first version: token, mark, end of the lease in
// milliseconds since 1970, or 0, and the holder, which may hold spaces.
func (s *Store) decodeOlder(pool, id, row string) (w driver.Worker, until time.Time, err error) {
	words := strings.SplitN(row, " ", 4)
	if len(words) != 4 {
		return w, until, corrupt(s.keys.workersBefore(pool), id, row)
	}
	var expires int64
	w.Pool, w.Holder = pool, words[3]
	for i, text := range append([]string{id}, words[:3]...) {
		n, canonical, err := number(text)
		if err != nil || !canonical || n < 0 {
			return w, until, corrupt(s.keys.workersBefore(pool), id, row)
		}
		*[]*int64{&w.ID, &w.Token, &w.Mark, &expires}[i] = n
	}
	if expires != 0 {
		until = time.UnixMilli(expires)
	}
	return w, until, nil
}

// moveRow returns what adds a row unless it is there, or the migration has ended.
func (s *Store) moveRow(ctx context.Context) func(table, name string, value []byte) error {
	return func(table, name string, value []byte) error {
		_, err := s.evalRows(ctx, moveRowScript, nil, field(table, name), value, formatMoving)
		return err
	}
}

func (s *Store) moveWorkers(ctx context.Context, pool string) (int, error) {
	r, err := s.eval(ctx, closeWorkersScript, []string{s.keys.workersBefore(pool)})
	if err != nil {
		return 0, err
	}
	fields := r.fields()
	for id, row := range fields {
		w, _, err := s.decodeOlder(pool, id, row)
		if err == nil {
			err = s.moveRow(ctx)(driver.RowOfWorker(w))
		}
		if err != nil {
			return 0, err
		}
	}
	return len(fields), nil
}

// fillTags gives all tags the fields that the first version did not have.
func (s *Store) fillTags(ctx context.Context) (int, error) {
	names, err := s.rdb.ZRange(ctx, s.keys.tags(), 0, -1).Result()
	if err != nil {
		return 0, err
	}
	for some := range slices.Chunk(names, pageSize) {
		pipe := s.rdb.Pipeline()
		for _, name := range some {
			pipe.HGet(ctx, s.keys.tag(name), "kind")
		}
		kinds, err := pipe.Exec(ctx)
		if err != nil && err != redis.Nil {
			return 0, err
		}
		pipe = s.rdb.Pipeline()
		for i, name := range some {
			kind := kinds[i].(*redis.StringCmd).Val()
			if kind == "" { // its key was not made yet, and the pending set says so
				continue
			}
			delta := 1
			if hapax.Kind(kind) != hapax.KindSegment {
				delta = 0
			}
			for field, value := range map[string]int{"run": 0, "delta": delta, "remainder": 0} {
				pipe.HSetNX(ctx, s.keys.tag(name), field, strconv.Itoa(value))
			}
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return 0, err
		}
	}
	pending, err := s.rdb.SMembers(ctx, s.keys.pending()).Result()
	for _, entry := range pending {
		if name, ok := strings.CutPrefix(entry, "tag/"); ok && err == nil {
			err = s.rdb.SAdd(ctx, s.keys.pending(), name).Err()
		}
		if err == nil && (strings.HasPrefix(entry, "tag/") || strings.HasPrefix(entry, "pool/")) {
			err = s.rdb.SRem(ctx, s.keys.pending(), entry).Err()
		}
	}
	return len(names), err
}

// movePoolsScript sets the format, and the first version's pools aside. KEYS: store, pools,
// where they go. ARGV: store ID, the format, what stands in their place.
var movePoolsScript = newWrite(`
local no = refused(KEYS[1], 'id')
if no then return no end
redis.call('HSET', KEYS[1], 'format', ARGV[2])
if redis.call('TYPE', KEYS[2]).ok == 'hash' then redis.call('RENAME', KEYS[2], KEYS[3]) end
redis.call('SET', KEYS[2], ARGV[3])
return {'ok'}`)

// closeWorkersScript takes the store ID from a pool's workers, and answers ok and them.
// KEYS: workers. ARGV: store ID.
var closeWorkersScript = newWrite(`
local id = redis.call('HGET', KEYS[1], 'store')
if id and id ~= ARGV[1] then return {'replaced', id} end
redis.call('HDEL', KEYS[1], 'store')
return {'ok', unpack(redis.call('HGETALL', KEYS[1]))}`)

// moveRowScript adds a row that is not there while the store has a format. ARGV: store ID,
// row, value, format.
var moveRowScript = newWrite(swapBody + rowsPrelude + `
if redis.call('HGET', KEYS[1], 'format') == ARGV[4] then swap(ARGV[2], '', ARGV[3]) end
return {'ok'}`)

// formatScript sets the format. KEYS: store. ARGV: store ID, format.
var formatScript = newWrite(`
local no = refused(KEYS[1], 'id')
if no then return no end
redis.call('HSET', KEYS[1], 'format', ARGV[2])
return {'ok'}`)
