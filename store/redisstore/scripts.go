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
type script struct {
	source, hash string
	writes       bool // its answer counts only once replicas have it; see eval
}

func newScript(source string) script {
	source = prelude + source
	sum := sha1.Sum([]byte(source))
	return script{source: source, hash: hex.EncodeToString(sum[:])}
}

func newWrite(source string) script {
	sc := newScript(source)
	sc.writes = true
	return sc
}

// Every script answers a list that starts with the outcome: one of these words.
const (
	saidOK       = "ok"
	saidNo       = "no"       // the key is not as it was expected to be
	saidMissing  = "missing"  // the key does not exist
	saidLost     = "lost"     // rows are missing that were there
	saidReplaced = "replaced" // followed by the store ID that was found, or ""
	saidUnmet    = "unmet"    // no beat was made
	saidReplica  = "replica"  // the server is one; nothing was done
)

// Every script's first argument is the store ID. refused answers what stands against
// going on: the server is a replica, which may let itself be read and even written, or
// the store is another one, by a key that has its ID in a field. An account that may
// not ask for the role is not protected from replicas.
//
// halves reads a decimal that is not negative in two halves of nine and more
// digits, which Lua's numbers hold exactly as they do their sums.
const prelude = `
local replication = redis.pcall('INFO', 'replication')
if type(replication) ~= 'string' then replication = 'role:master' end
local function refused(key, field)
  if not string.find(replication, 'role:master', 1, true) then return {'replica'} end
  local id = redis.call('HGET', key, field)
  if not id and field == 'store' then return {'missing'} end
  if id ~= ARGV[1] then return {'replaced', id or ''} end
end
local function halves(s)
  if not s or #s > 19 or not (s == '0' or string.match(s, '^[1-9]%d*$')) then return nil end
  return tonumber(string.sub(s, 1, -10)) or 0, tonumber(string.sub(s, -9))
end
local function added(ah, al, bh, bl)
  local h, l = ah + bh, al + bl
  if l >= 1000000000 then h, l = h + 1, l - 1000000000 end
  return h, l
end
`

// openScript makes the store unless it exists. KEYS: store. ARGV: an ID and a
// format for a new store. It answers ok and the store's fields.
var openScript = newScript(`
redis.call('HSETNX', KEYS[1], 'id', ARGV[1])
redis.call('HSETNX', KEYS[1], 'format', ARGV[2])
return {'ok', unpack(redis.call('HGETALL', KEYS[1]))}`)

// pingScript tries to write. KEYS: store. ARGV: store ID.
var pingScript = newWrite(`
local no = refused(KEYS[1], 'id')
if no then return no end
redis.call('HSETNX', KEYS[1], 'id', ARGV[1])
return {'ok'}`)

// lookupScript reports whether a tag is in the index. KEYS: store, tags, pending.
// ARGV: store ID, name. It answers ok for a name that has a key, no for
// one whose key is being made, missing for one that is unknown.
var lookupScript = newScript(`
local no = refused(KEYS[1], 'id')
if no then return no end
if redis.call('SISMEMBER', KEYS[3], ARGV[2]) == 1 then return {'no'} end
return {redis.call('ZSCORE', KEYS[2], ARGV[2]) and 'ok' or 'missing'}`)

// indexTagScript enters a tag's name into the index before its key is made.
// KEYS: store, tags, pending. ARGV: store ID, name.
var indexTagScript = newWrite(`
local no = refused(KEYS[1], 'id')
if no then return no end
if redis.call('ZADD', KEYS[2], 0, ARGV[2]) == 1 then redis.call('SADD', KEYS[3], ARGV[2]) end
return {'ok'}`)

// listNamesScript answers ok and names of tags in byte order. KEYS: store, tags.
// ARGV: store ID, where to begin, how many.
var listNamesScript = newScript(`
local no = refused(KEYS[1], 'id')
if no then return no end
return {'ok', unpack(redis.call('ZRANGEBYLEX', KEYS[2], ARGV[2], '+', 'LIMIT', 0, ARGV[3]))}`)

// readTagScript answers ok and a tag's fields. KEYS: tag. ARGV: store ID.
var readTagScript = newScript(`
local no = refused(KEYS[1], 'store')
if no then return no end
return {'ok', unpack(redis.call('HGETALL', KEYS[1]))}`)

// allocateBody raises a tag's mark by n numbers in decimal ("0": the tag's step), and
// answers ok or no; last is the hash of the caller's last key, fresh that of the new
// one.
var allocateBody = fmt.Sprintf(`
local function allocate(key, n, last, fresh)
  local t = redis.call('HMGET', key, 'kind', 'deleted', 'mark', 'step', 'delta', 'key_hash', 'run', 'token')
  if n == '0' then n = t[4] end
  local mh, ml = halves(t[3])
  local nh, nl = halves(n)
  local dh, delta = halves(t[5])
  if not (t[1] == 'segment' and t[2] == '0' and mh and mh + ml > 0 and nh and nh < 2000 and nh + nl > 0 and dh == 0 and delta > 0 and halves(t[7]) and halves(t[8] or '0')) then return 'no' end
  local carry = math.floor(nl * delta / 1000000000)
  local wh, wl = nh * delta + carry, nl * delta - carry * 1000000000
  local h, l = added(mh, ml, wh, wl)
  if h > %[1]d or (h == %[1]d and l > %[2]d) then return 'no' end
  local width = string.format('%%d%%09d', wh, wl)
  if wh == 0 then width = string.format('%%d', wl) end
  if last == '' or t[6] ~= last then redis.call('HSET', key, 'run', 0) end
  redis.call('HINCRBY', key, 'run', width)
  redis.call('HINCRBY', key, 'mark', width)
  redis.call('HSET', key, 'key_hash', fresh)
  return 'ok'
end
`, hapax.MaxMark/1_000_000_000, hapax.MaxMark%1_000_000_000)

// allocateScript allocates. KEYS: tag. ARGV: store ID, n, last, fresh. It
// answers ok or no with the tag as it is now.
var allocateScript = newWrite(allocateBody + `
local no = refused(KEYS[1], 'store')
if no then return no end
return {allocate(KEYS[1], ARGV[2], ARGV[3], ARGV[4]), unpack(redis.call('HGETALL', KEYS[1]))}`)

// handBackBody lowers a tag's mark to next and raises its token, if mark, hash of the
// key and token are as expected, and answers ok or no.
const handBackBody = `
local function hand_back(key, mark, hash, token, next)
  local t = redis.call('HMGET', key, 'deleted', 'mark', 'key_hash', 'run', 'token')
  local mh, ml = halves(t[2])
  local nh, nl = halves(next)
  local rh, rl = halves(t[4])
  if not (t[1] == '0' and t[2] == mark and t[3] == hash and hash ~= '' and (t[5] or '0') == token and mh and nh and rh) then return 'no' end
  local h, l = added(nh, nl, rh, rl)
  if h < mh or (h == mh and l < ml) or nh > mh or (nh == mh and nl > ml) then return 'no' end
  redis.call('HSET', key, 'mark', next, 'run', 0, 'key_hash', '')
  redis.call('HINCRBY', key, 'token', 1)
  return 'ok'
end
`

// handBackScript hands back. KEYS: tag. ARGV: store ID, mark, hash, token,
// next. It answers ok or no with the tag as it is now.
var handBackScript = newWrite(handBackBody + `
local no = refused(KEYS[1], 'store')
if no then return no end
return {hand_back(KEYS[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]), unpack(redis.call('HGETALL', KEYS[1]))}`)

// healTagScript raises a tag's mark and token, the token above the given one. KEYS:
// tag. ARGV: store ID, kind, pool, mark, token. It answers ok or no with the
// tag as it is now.
var healTagScript = newWrite(`
local no = refused(KEYS[1], 'store')
if no then return no end
local t = redis.call('HMGET', KEYS[1], 'kind', 'pool', 'mark', 'token')
if t[1] ~= ARGV[2] or t[2] ~= ARGV[3] then return {'no', unpack(redis.call('HGETALL', KEYS[1]))} end
for i, field in ipairs({'mark', 'token'}) do
  local is, floor = t[2 + i] or '0', ARGV[3 + i]
  if #is < #floor or (#is == #floor and is < floor) then redis.call('HSET', KEYS[1], field, floor) end
end
redis.call('HINCRBY', KEYS[1], 'token', 1)
redis.call('HSET', KEYS[1], 'run', 0, 'key_hash', '')
return {'ok', unpack(redis.call('HGETALL', KEYS[1]))}`)

// defineTagScript writes a tag's definition if its revision is still the expected
// one, and raises its mark to a floor, which ends the run of the numbers granted
// last. KEYS: tag. ARGV: store ID, revision ("": the tag must not exist),
// floor, fields and values. It answers ok with the tag as it is now, or no.
var defineTagScript = newWrite(`
local no = refused(KEYS[1], 'store')
if no and not (no[1] == 'missing' and ARGV[2] == '') then return no end
local t = redis.call('HMGET', KEYS[1], 'rev', 'mark')
if (t[1] or '') ~= ARGV[2] or (not no and not t[1]) then return {'no'} end
local mark, floor = t[2] or '', ARGV[3]
if #mark < #floor or (#mark == #floor and mark < floor) then
  redis.call('HSET', KEYS[1], 'mark', floor, 'run', 0, 'key_hash', '')
end
redis.call('HSET', KEYS[1], 'store', ARGV[1], unpack(ARGV, 4))
return {'ok', unpack(redis.call('HGETALL', KEYS[1]))}`)

// rowsPrelude begins the scripts on rows. KEYS: store, rows, names. Rows that were
// lost make one of the three counts differ.
const rowsPrelude = `
local no = refused(KEYS[1], 'id')
if no then return no end
local count = tonumber(redis.call('HGET', KEYS[1], 'rows') or '0')
if redis.call('HLEN', KEYS[2]) ~= count or redis.call('ZCARD', KEYS[3]) ~= count then return {'lost'} end
`

// readRowScript answers ok and the value, or missing. ARGV: store ID, row.
var readRowScript = newScript(rowsPrelude + `
local value = redis.call('HGET', KEYS[2], ARGV[2])
if not value then return {'missing'} end
return {'ok', value}`)

// listRowsScript answers ok, names and values; no instead of ok if there may be
// more. ARGV: store ID, the range's bounds, how many, how many bytes.
var listRowsScript = newScript(rowsPrelude + `
local names = redis.call('ZRANGEBYLEX', KEYS[3], ARGV[2], ARGV[3], 'LIMIT', 0, ARGV[4])
local found, size = {#names < tonumber(ARGV[4]) and 'ok' or 'no'}, 0
for i, name in ipairs(names) do
  local value = redis.call('HGET', KEYS[2], name)
  if not value then return {'lost'} end
  found[#found + 1], found[#found + 2] = name, value
  size = size + #value
  if size > tonumber(ARGV[5]) and i < #names then
    found[1] = 'no'
    break
  end
end
return found`)

// swapBody replaces a row's value and answers ok or no; "" stands for no row.
const swapBody = `
local function swap(row, old, new)
  if (redis.call('HGET', KEYS[2], row) or '') ~= old then return 'no' end
  if new == '' then
    redis.call('HDEL', KEYS[2], row)
    redis.call('ZREM', KEYS[3], row)
    redis.call('HINCRBY', KEYS[1], 'rows', -1)
  else
    redis.call('HSET', KEYS[2], row, new)
    if redis.call('ZADD', KEYS[3], 0, row) == 1 then redis.call('HINCRBY', KEYS[1], 'rows', 1) end
  end
  return 'ok'
end
`

// swapRowScript swaps. ARGV: store ID, row, the expected value, the new one.
var swapRowScript = newWrite(swapBody + rowsPrelude + `
return {swap(ARGV[2], ARGV[3], ARGV[4])}`)

// meetPrelude begins the guarded scripts. KEYS: store, rows, names, and the tag where
// there is one. ARGV: store ID, the process's row, what it is at least, what
// it is to be. It answers unmet and the rows where the beat is not made; otherwise it
// leaves a function that puts what every guarded script answers, the joins and
// who answers, behind a word. Values are compared as bytes: Lua compares
// text as the server's locale has it.
const meetPrelude = rowsPrelude + `
local function below(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end
local own = redis.call('HGET', KEYS[2], ARGV[2])
local fence = redis.call('HGET', KEYS[2], 'fence\0loss')
local server = redis.pcall('INFO', 'server')
local run = type(server) == 'string' and string.match(server, '\nrun_id:(%x+)')
local history = string.match(replication, '\nmaster_replid:(%x+)')
local primary = run and 'run ' .. run .. (history and ' history ' .. history or '') or ''
local function met(word, ...)
  return {word, redis.call('HGET', KEYS[2], 'guard\0joins') or '', primary, ...}
end
if fence or not own or below(own, ARGV[3]) then return met('unmet', own or '', fence or '') end
if below(own, ARGV[4]) then redis.call('HSET', KEYS[2], ARGV[2], ARGV[4]) end
`

// beatScript makes the beat, and looks at the number of changes and at a row to watch. ARGV:
// those of the pulse, and that row, "" for none.
var beatScript = newWrite(meetPrelude + `
return met('ok', redis.call('HGET', KEYS[2], 'guard\0changes') or '', ARGV[5] ~= '' and redis.call('HGET', KEYS[2], ARGV[5]) or '')`)

// meetTag ends a guarded script early whose tag has no key, or another store's.
const meetTag = `
local no = refused(KEYS[4], 'store')
if no and no[1] == 'missing' then return met('missing') end
if no then return no end
`

// allocateWithScript is allocateScript under a pulse: its ARGV follow after ARGV[4].
var allocateWithScript = newWrite(allocateBody + meetPrelude + meetTag + `
return met(allocate(KEYS[4], ARGV[5], ARGV[6], ARGV[7]), unpack(redis.call('HGETALL', KEYS[4])))`)

// handBackWithScript is handBackScript under a pulse.
var handBackWithScript = newWrite(handBackBody + meetPrelude + meetTag + `
return met(hand_back(KEYS[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]), unpack(redis.call('HGETALL', KEYS[4])))`)

// handBackAllScript is handBackWithScript for many tags. KEYS: those of the rows, and the
// tags. ARGV: those of the pulse, and mark, hash, token and next of each tag. It answers
// which were handed back, the first as 1.
var handBackAllScript = newWrite(handBackBody + meetPrelude + `
local given = {}
for i = 1, #KEYS - 3 do
  local key, at = KEYS[3 + i], 4 * i
  if redis.call('HGET', key, 'store') == ARGV[1] and hand_back(key, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]) == 'ok' then
    given[#given + 1] = i
  end
end
return met('ok', table.concat(given, ' '))`)

// swapWithScript is swapRowScript under a pulse.
var swapWithScript = newWrite(swapBody + meetPrelude + `
return met(swap(ARGV[5], ARGV[6], ARGV[7]))`)

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

// fields reads the pairs behind the first element.
func (r reply) fields() map[string]string {
	m := make(map[string]string, len(r)/2)
	for i := 1; i+1 < len(r); i += 2 {
		m[r.text(i)] = r.text(i + 1)
	}
	return m
}

// eval runs a script with the store ID before its arguments. What a write answers
// counts only once as many replicas as Options.Wait asks for have it; the outcome
// counts as unknown otherwise.
func (s *Store) eval(ctx context.Context, sc script, keys []string, args ...any) (reply, error) {
	wait := 0
	if sc.writes {
		wait = s.opts.Wait
	}
	r, err := s.evalWaiting(ctx, sc, keys, append([]any{s.id}, args...), wait)
	if err != nil {
		return nil, err
	}
	switch r.text(0) {
	case saidReplaced:
		return nil, s.same(r.text(1))
	case saidReplica:
		return nil, errReplica()
	}
	return r, nil
}

// evalWaiting runs a script with its arguments as they are, and waits for the
// given number of replicas.
func (s *Store) evalWaiting(ctx context.Context, sc script, keys []string, args []any, wait int) (reply, error) {
	r, err := s.send(ctx, "evalsha", sc.hash, keys, args, wait)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		r, err = s.send(ctx, "eval", sc.source, keys, args, wait)
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

// send sends one script and, in the same round trip to the same server, asks for its
// replicas: WAIT counts for the connection that wrote.
func (s *Store) send(ctx context.Context, verb, text string, keys []string, args []any, wait int) (any, error) {
	words := append(make([]any, 0, 3+len(keys)+len(args)), verb, text, len(keys))
	for _, k := range keys {
		words = append(words, k)
	}
	cmd := once{redis.NewCmd(ctx, append(words, args...)...)}
	node, err := s.nodeOf(ctx, keys[0])
	if err != nil {
		return nil, err
	}
	patience := waitFor
	if at, ok := ctx.Deadline(); ok {
		patience = max(min(patience, time.Until(at)/2), time.Millisecond)
	}
	pipe := node.Pipeline()
	_ = pipe.Process(ctx, cmd)
	var acks *redis.Cmd
	if wait > 0 {
		acks = pipe.Do(ctx, "wait", wait, patience.Milliseconds())
	}
	_, failure := pipe.Exec(ctx)
	r, err := cmd.Result()
	if r == nil && err == nil { // nothing was sent
		err = failure
	}
	if err != nil {
		if c, ok := s.rdb.(*redis.ClusterClient); ok && (redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")) {
			c.ReloadState(ctx)
		}
		return nil, err
	}
	if acks == nil {
		return r, nil
	}
	if n, err := acks.Int(); err != nil {
		return nil, err
	} else if n < wait {
		return nil, fmt.Errorf("%w: redis: %d of %d replicas have the write after %v", hapax.ErrStoreUnavailable, n, wait, patience)
	}
	return r, nil
}
