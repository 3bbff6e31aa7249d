package redismongo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
)

// DefaultWorkersKey is the key of the hash of instances.
const DefaultWorkersKey = "hapax:workers"

var _ Registry = RedisRegistry{}

// A RedisRegistry is a hash of instances: name.port.ip, with the IP address as an
// unsigned integer, and its worker ID.
type RedisRegistry struct {
	Client redis.UniversalClient
	Key    string // default DefaultWorkersKey

	// WithoutEval registers in a transaction (WATCH, MULTI and EXEC) instead of a script.
	WithoutEval bool
}

// registerScript returns the worker ID of the instance ARGV[1], nil if none is free
// from ARGV[3] to ARGV[4]. ARGV[2] is the one it wants, empty for none.
var registerScript = redis.NewScript(`
local have = redis.call('HGET', KEYS[1], ARGV[1])
if have then return have end
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[5]) then return false end
local taken = {}
for _, id in ipairs(redis.call('HVALS', KEYS[1])) do taken[id] = true end
local id = ARGV[2]
if id == '' or taken[id] then
  id = false
  for n = tonumber(ARGV[3]), tonumber(ARGV[4]) do
    local s = string.format('%.0f', n)
    if not taken[s] then
      id = s
      break
    end
  end
end
if id then redis.call('HSET', KEYS[1], ARGV[1], id) end
return id
`)

// Register implements Registry.
func (r RedisRegistry) Register(ctx context.Context, key string, ids hapax.WorkerRange, wanted int64) (int64, error) {
	hash := r.Key
	if hash == "" {
		hash = DefaultWorkersKey
	}
	want := ""
	if wanted >= 0 {
		want = strconv.FormatInt(wanted, 10)
	}
	register, commands := r.byScript, "EVAL, EVALSHA, HGET, HLEN, HVALS and HSET"
	if r.WithoutEval {
		register, commands = r.byTransaction, "WATCH, UNWATCH, MULTI, EXEC, HGETALL and HSET"
	}
	text, err := register(ctx, hash, key, want, ids)
	switch {
	case errors.Is(err, redis.Nil):
		return 0, full(ids)
	case notAllowed(err):
		return 0, fmt.Errorf("%w: redis: the account needs %s: %w", hapax.ErrStoreUnsafe, commands, err)
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		return 0, fmt.Errorf("%w: %s in Redis is no hash: %w", hapax.ErrStoreCorrupt, hash, err)
	case err != nil:
		return 0, fmt.Errorf("%w: redis: %w", hapax.ErrStoreUnavailable, err)
	}
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %s of the hash %s in Redis is %.100q; want a worker ID", hapax.ErrStoreCorrupt, key, hash, text)
	}
	return id, nil
}

// byScript registers an instance; redis.Nil where no worker ID is free.
func (r RedisRegistry) byScript(ctx context.Context, hash, key, want string, ids hapax.WorkerRange) (string, error) {
	return registerScript.Run(ctx, r.Client, []string{hash}, key, want, ids.Lo, ids.Hi-1, maxInstances).Text()
}

// byTransaction is byScript, tried until nobody registers at the same time.
func (r RedisRegistry) byTransaction(ctx context.Context, hash, key, want string, ids hapax.WorkerRange) (id string, err error) {
	for {
		err = r.Client.Watch(ctx, func(tx *redis.Tx) error {
			all, err := tx.HGetAll(ctx, hash).Result()
			if err != nil {
				return err
			}
			var there bool
			if id, there = all[key]; there {
				return nil
			}
			if id = free(all, want, ids); id == "" {
				return redis.Nil
			}
			_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.HSet(ctx, hash, key, id).Err() })
			return err
		}, hash)
		if !errors.Is(err, redis.TxFailedErr) {
			return id, err
		}
		select {
		// At random, so that two that forestall each other get apart.
		case <-time.After(rand.N(conflictPause)):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// free returns the worker ID that is wanted, or else the lowest, that no instance has;
// empty if there is none.
func free(all map[string]string, want string, ids hapax.WorkerRange) string {
	if len(all) >= maxInstances {
		return ""
	}
	taken := map[string]bool{}
	for _, id := range all {
		taken[id] = true
	}
	if want != "" && !taken[want] {
		return want
	}
	for n := ids.Lo; n < ids.Hi; n++ {
		if id := strconv.FormatInt(n, 10); !taken[id] {
			return id
		}
	}
	return ""
}
