package redismongo

import (
	"context"
	"errors"
	"fmt"
	"strconv"

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
	text, err := registerScript.Run(ctx, r.Client, []string{hash}, key, want, ids.Lo, ids.Hi-1, maxInstances).Text()
	switch {
	case errors.Is(err, redis.Nil):
		return 0, full(ids)
	case notAllowed(err):
		return 0, fmt.Errorf("%w: redis: the account needs EVAL, EVALSHA, HGET, HLEN, HVALS and HSET: %w", hapax.ErrStoreUnsafe, err)
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
