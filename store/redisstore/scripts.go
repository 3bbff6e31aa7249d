package redisstore

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
)

// A script runs in one atomic step on the server.
type script struct{ source, hash string }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source))
	return script{source, hex.EncodeToString(sum[:])}
}

// Every script but open, ping and record answers a list that starts with what happened:
// one of these words.
const (
	saidOK       = "ok"
	saidNo       = "no"       // the key is not as it was expected to be
	saidMissing  = "missing"  // the key does not exist
	saidReplaced = "replaced" // followed by the store ID that was found, or ""
)

// openScript makes the store unless it exists. KEYS: store. ARGV: an ID and a
// format for a new store. It answers the store's fields.
var openScript = newScript(`
redis.call('HSETNX', KEYS[1], 'id', ARGV[1])
redis.call('HSETNX', KEYS[1], 'format', ARGV[2])
return redis.call('HGETALL', KEYS[1])`)

// recordScript sets fields of the store's key. KEYS: store. ARGV: store ID,
// fields and values.
var recordScript = newScript(`
local id = redis.call('HGET', KEYS[1], 'id') or ''
if id == ARGV[1] then redis.call('HSET', KEYS[1], unpack(ARGV, 2)) end
return {id}`)

// pingScript answers the store's ID and, if it is the expected one, tries to
// write. KEYS: store. ARGV: store ID.
var pingScript = newScript(`
local id = redis.call('HGET', KEYS[1], 'id') or ''
if id == ARGV[1] then redis.call('HSETNX', KEYS[1], 'id', id) end
return {id}`)

// lookupScript tells whether a name is in an index. KEYS: store, index, pending.
// ARGV: store ID, name, its pending entry. It answers ok for a name that has a
// key, no for one whose key is being made, missing for one that is unknown.
var lookupScript = newScript(`
local id = redis.call('HGET', KEYS[1], 'id') or ''
if id ~= ARGV[1] then return {'replaced', id} end
if redis.call('SISMEMBER', KEYS[3], ARGV[3]) == 1 then return {'no'} end
local known
if redis.call('TYPE', KEYS[2]).ok == 'hash' then
  known = redis.call('HGET', KEYS[2], ARGV[2])
else
  known = redis.call('ZSCORE', KEYS[2], ARGV[2])
end
return {known and 'ok' or 'missing'}`)

// indexTagScript enters a tag's name into the index before its key is made.
// KEYS: store, tags, pending. ARGV: store ID, name, its pending entry.
var indexTagScript = newScript(`
local id = redis.call('HGET', KEYS[1], 'id') or ''
if id ~= ARGV[1] then return {'replaced', id} end
if redis.call('ZADD', KEYS[2], 0, ARGV[2]) == 1 then redis.call('SADD', KEYS[3], ARGV[3]) end
return {'ok'}`)

// freezePoolScript stores a pool's layout unless it has one. KEYS: store, pools,
// pending. ARGV: store ID, pool, layout, the pending entry. It answers ok, or no
// while the pool's key has yet to be made, and the layout that is stored.
var freezePoolScript = newScript(`
local id = redis.call('HGET', KEYS[1], 'id') or ''
if id ~= ARGV[1] then return {'replaced', id} end
if redis.call('HSETNX', KEYS[2], ARGV[2], ARGV[3]) == 1 then redis.call('SADD', KEYS[3], ARGV[4]) end
local made = redis.call('SISMEMBER', KEYS[3], ARGV[4]) == 0
return {made and 'ok' or 'no', redis.call('HGET', KEYS[2], ARGV[2])}`)

// makeWorkersScript makes a pool's key. KEYS: workers. ARGV: store ID.
var makeWorkersScript = newScript(`
redis.call('HSETNX', KEYS[1], 'store', ARGV[1])
local id = redis.call('HGET', KEYS[1], 'store')
return {id == ARGV[1] and 'ok' or 'replaced', id}`)

// allocateScript raises a tag's mark. KEYS: tag. ARGV: store ID, how many
// numbers in decimal ("0": the tag's step). It answers ok or no with the tag as
// it is now. Sums are checked in two halves of nine and more digits, which Lua
// holds exactly.
var allocateScript = newScript(fmt.Sprintf(`
local t = redis.call('HMGET', KEYS[1], 'store', 'kind', 'deleted', 'mark', 'step')
if not t[1] then return {'missing'} end
if t[1] ~= ARGV[1] then return {'replaced', t[1]} end
local n = ARGV[2]
if n == '0' then n = t[5] end
local function halves(s)
  if not s or #s > 19 or not string.match(s, '^[1-9]%%d*$') then return nil end
  return tonumber(string.sub(s, 1, -10)) or 0, tonumber(string.sub(s, -9))
end
local mh, ml = halves(t[4])
local nh, nl = halves(n)
local said = 'no'
if t[2] == 'segment' and t[3] == '0' and mh and nh then
  local h, l = mh + nh, ml + nl
  if l >= 1000000000 then h, l = h + 1, l - 1000000000 end
  if h < %[1]d or (h == %[1]d and l <= %[2]d) then
    redis.call('HINCRBY', KEYS[1], 'mark', n)
    said = 'ok'
  end
end
return {said, unpack(redis.call('HGETALL', KEYS[1]))}`, hapax.MaxMark/1_000_000_000, hapax.MaxMark%1_000_000_000))

// defineTagScript writes a tag's definition if its revision is still the
// expected one, and raises its mark to a floor. KEYS: tag. ARGV: store ID,
// revision ("": the tag must not exist), floor, fields and values. It answers ok
// with the tag as it is now, or no.
var defineTagScript = newScript(`
local t = redis.call('HMGET', KEYS[1], 'store', 'rev', 'mark')
if t[1] and t[1] ~= ARGV[1] then return {'replaced', t[1]} end
if (t[2] or '') ~= ARGV[2] or (t[1] and not t[2]) then return {'no'} end
local mark, floor = t[3] or '', ARGV[3]
if #mark < #floor or (#mark == #floor and mark < floor) then mark = floor end
redis.call('HSET', KEYS[1], 'store', ARGV[1], 'mark', mark, unpack(ARGV, 4))
return {'ok', unpack(redis.call('HGETALL', KEYS[1]))}`)

// swapWorkerScript replaces a worker's row. KEYS: workers. ARGV: store ID,
// worker ID, the expected "epoch mark" ("": no row), the new row.
var swapWorkerScript = newScript(`
local t = redis.call('HMGET', KEYS[1], 'store', ARGV[2])
if not t[1] then return {'missing'} end
if t[1] ~= ARGV[1] then return {'replaced', t[1]} end
local now = t[2] and string.match(t[2], '^%-?%d+ %-?%d+') or ''
if now ~= ARGV[3] then return {'no'} end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[4])
return {'ok'}`)

// A command that may not be sent a second time.
type once struct{ *redis.Cmd }

// NoRetry is asked by go-redis.
func (once) NoRetry() bool { return true }

// A reply is what a script answered.
type reply []any

// text returns the element at i as text, "" where there is none.
func (r reply) text(i int) string {
	if i >= len(r) {
		return ""
	}
	s, _ := r[i].(string)
	return s
}

// eval runs a script, and waits for the replicas that Options.Wait asks for:
// without their acknowledgement the outcome counts as unknown.
func (s *Store) eval(ctx context.Context, sc script, keys []string, args ...any) (reply, error) {
	r, err := s.evalBy(ctx, "evalsha", sc.hash, keys, args)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		r, err = s.evalBy(ctx, "eval", sc.source, keys, args)
	}
	if err != nil {
		return nil, err
	}
	list, ok := r.([]any)
	if !ok || len(list) == 0 {
		return nil, fmt.Errorf("%w: redis: a script answered %T", hapax.ErrStoreCorrupt, r)
	}
	return list, nil
}

func (s *Store) evalBy(ctx context.Context, verb, text string, keys []string, args []any) (any, error) {
	words := append(make([]any, 0, 3+len(keys)+len(args)), verb, text, len(keys))
	for _, k := range keys {
		words = append(words, k)
	}
	cmd := once{redis.NewCmd(ctx, append(words, args...)...)}
	if s.opts.Wait == 0 {
		_ = s.rdb.Process(ctx, cmd) // the error is the command's
		return cmd.Result()
	}
	// WAIT counts for the connection that wrote, so both go in one pipeline to
	// the node that has the key.
	var node redis.Cmdable = s.rdb
	cluster, isCluster := s.rdb.(*redis.ClusterClient)
	if isCluster {
		master, err := cluster.MasterForKey(ctx, keys[0])
		if err != nil {
			return nil, err
		}
		node = master
	}
	patience := waitFor
	if at, ok := ctx.Deadline(); ok {
		patience = max(min(patience, time.Until(at)/2), time.Millisecond)
	}
	pipe := node.Pipeline()
	_ = pipe.Process(ctx, cmd)
	acks := pipe.Do(ctx, "wait", s.opts.Wait, patience.Milliseconds())
	_, _ = pipe.Exec(ctx) // each command has its own error
	r, err := cmd.Result()
	if err != nil {
		if isCluster && (redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")) {
			cluster.ReloadState(ctx)
		}
		return nil, err
	}
	if n, err := acks.Int(); err != nil {
		return nil, err
	} else if n < s.opts.Wait {
		return nil, fmt.Errorf("%w: redis: %d of %d replicas have the write after %v", hapax.ErrStoreUnavailable, n, s.opts.Wait, patience)
	}
	return r, nil
}

// fields reads pairs from position i on.
func (r reply) fields(i int) map[string]string {
	m := make(map[string]string, (len(r)-i)/2)
	for ; i+1 < len(r); i += 2 {
		m[r.text(i)] = r.text(i + 1)
	}
	return m
}
