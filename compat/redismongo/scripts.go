package redismongo

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hapax-id/hapax"
)

// A counter takes numbers from the hash of a tag, and installs segments in it. What it
// does happens in Redis in one step, or not at all.
type counter interface {
	// take takes numbers, and tells whether the caller is to fetch a segment.
	take(ctx context.Context, ask asking) (taking, error)

	// install installs a segment for the holder of a right. It returns the highest number
	// that the hash knows where the segment does not lie above that.
	install(ctx context.Context, in installing) (top string, err error)

	// commands are those that the account needs.
	commands() string
}

// An asking is what somebody who takes numbers tells Redis.
type asking struct {
	n         int    // how many at most; 0 only looks
	seen      int64  // the highest number that the caller has seen
	threshold int    // after what percentage of a segment the next one is to be fetched
	right     string // becomes the right to install one
	store     string // identity of the caller's store; empty if it is not known
}

// A taking is what Redis answered: the numbers up to last, n of them.
type taking struct {
	last  int64
	n     int
	dry   bool      // there is no segment
	other string    // the store whose segments Redis has, if it is another one
	fetch *fetching // set if the caller is to fetch a segment
}

// A fetching is the knowledge that the holder of the right to install a segment needs.
type fetching struct {
	server string        // that gave the right
	step   int64         // numbers of the latest segment; 0 if there is none
	age    time.Duration // since the latest segment was installed; below 0 if that is not known
}

// An installing is a segment on its way to Redis.
type installing struct {
	server, right string
	store         string
	grant         hapax.Grant // none gives the right back
}

// bounds returns the number before the segment, its last one, and how many it has.
func (in installing) bounds() (before, last string, n int64) {
	if n = in.grant.Len(); n == 0 {
		return "", "", 0
	}
	return strconv.FormatInt(in.grant.Lo-1, 10), strconv.FormatInt(in.grant.Hi-1, 10), n
}

// scripts is the counter of a Redis that runs scripts.
type scripts struct {
	rdb     redis.UniversalClient
	keys    []string
	timeout time.Duration
}

func (scripts) commands() string {
	return "EVAL, EVALSHA, INFO, TIME, HMGET, HGET, HSET, HDEL and HINCRBY"
}

func (s scripts) take(ctx context.Context, ask asking) (got taking, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	answer, err := takeScript.Run(ctx, s.rdb, s.keys, ask.n, ask.seen, ask.threshold, ask.right, rightFor.Milliseconds(), ask.store).Slice()
	if err != nil {
		return got, err
	}
	text := func(k int) string { s, _ := answer[k].(string); return s }
	if len(answer) == 6 {
		step, _ := strconv.ParseInt(text(4), 10, 64) // 0 if there was no segment yet
		age, _ := strconv.ParseInt(text(5), 10, 64)
		got.fetch = &fetching{text(3), step, time.Duration(age) * time.Millisecond}
	}
	switch {
	case len(answer) > 0 && text(0) == "dry":
		got.dry = true
		return got, nil
	case len(answer) == 2 && text(0) == "other":
		got.other = text(1)
		return got, nil
	}
	unexpected := func() error {
		return fmt.Errorf("%w: redis: unexpected answer %.100q", hapax.ErrStoreCorrupt, fmt.Sprint(answer))
	}
	if len(answer) < 3 || text(0) != "ok" {
		return got, unexpected()
	}
	last, err := strconv.ParseInt(text(1), 10, 64)
	n, ok := answer[2].(int64)
	// More than was asked for is no answer of the script: nobody has set those numbers apart.
	if err != nil || !ok || n < 0 || n > int64(ask.n) || last < n {
		return got, unexpected()
	}
	got.last, got.n = last, int(n)
	return got, nil
}

func (s scripts) install(ctx context.Context, in installing) (top string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	before, last, n := in.bounds()
	answer, err := installScript.Run(ctx, s.rdb, s.keys, in.server, in.right, before, last, n, in.store).StringSlice()
	if len(answer) == 2 && answer[0] == "low" {
		top = answer[1]
	}
	return top, err
}

// Numbers are decimal strings: Lua's own lose integers above 2^53. minus is exact
// where the difference is below that, and otherwise near enough to compare.
//
// Redis keeps a script by its hash; a client that finds it missing sends it whole.
const prelude = `
local key = KEYS[1]
local function minus(a, b)
  local function halves(s) return tonumber(string.sub(s, 1, -16)) or 0, tonumber(string.sub(s, -15)) end
  local ah, al = halves(a)
  local bh, bl = halves(b)
  return (ah - bh) * 1e15 + (al - bl)
end
local function word(section, name)
  return string.match(redis.call('INFO', section), '\n' .. name .. ':(%w+)')
end
local server = word('server', 'run_id') .. ' ' .. word('replication', 'master_replid')
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
`

// takeScript takes up to ARGV[1] numbers. ARGV[2] is the highest number that the
// caller has seen, ARGV[3] the percentage of a segment after which the next one is
// to be fetched, ARGV[4] a nonce that becomes the right to install a segment,
// ARGV[5] how long the right lasts, in ms, and ARGV[6] the identity of the caller's
// store, empty if that is unknown.
//
// It answers {"other", store} where the segments are another store's. Otherwise it
// answers {"ok", last number, how many} or {"dry"}, and where the caller is to
// fetch a segment three more: server, step and age of the latest segment in ms.
const takeSource = prelude + `
local of = redis.call('HGET', key, 'store')
if of and ARGV[6] ~= '' and of ~= ARGV[6] then return {'other', of} end
local v = redis.call('HMGET', key, 'srv', 'cur', 'max', 'step', 'ncur', 'nmax', 'at', 'load', 'until')
local srv, cur, max, step, ncur, nmax, at, load, till = unpack(v)
local held = srv == server and cur and max and step
if held and minus(cur, ARGV[2]) < 0 then
  redis.call('HDEL', key, 'srv')
  held = false
end
local left = 0
if held then
  left = minus(max, cur)
  if left <= 0 and ncur and nmax and minus(ncur, max) >= 0 then
    left = minus(nmax, ncur)
    cur, max, step = ncur, nmax, string.format('%.0f', left)
    redis.call('HSET', key, 'cur', cur, 'max', max, 'step', step)
    redis.call('HDEL', key, 'ncur', 'nmax')
    ncur = false
  end
end
if left <= 0 then ncur = false end
local answer = {'dry'}
if left > 0 then
  local n = math.min(tonumber(ARGV[1]), left)
  redis.call('HINCRBY', key, 'cur', n)
  left = left - n
  answer = {'ok', redis.call('HGET', key, 'cur'), n}
end
local used = step and tonumber(step) - left or 0
local due = left <= 0 or used * 100 >= tonumber(ARGV[3]) * tonumber(step)
-- A right that another server gave is none.
local given = load and till and string.sub(load, -#server) == server and tonumber(till) > now
if due and not (held and ncur) and not given then
  redis.call('HSET', key, 'load', ARGV[4] .. ' ' .. server, 'until', string.format('%.0f', now + tonumber(ARGV[5])))
  local age = at and now - tonumber(at) or -1
  if answer[1] == 'dry' then answer = {'dry', '', 0} end
  answer[4], answer[5], answer[6] = server, step or '', string.format('%.0f', age)
end
return answer
`

var takeScript = redis.NewScript(takeSource)

// installScript installs the segment of the numbers above ARGV[3] up to ARGV[4],
// ARGV[5] of them, for the holder of the right ARGV[2] of the server ARGV[1]. ARGV[6] is
// the identity of the store that granted them, empty if that is unknown. Without
// a segment (ARGV[3] is empty) it gives the right back.
//
// It answers {"ok"}; {"no"} if the right is gone; or {"low", the highest number
// that the hash knows} if the segment does not lie above that.
const installSource = prelude + `
local of = redis.call('HGET', key, 'store')
if of and ARGV[6] ~= '' and of ~= ARGV[6] then return {'no'} end
if ARGV[1] ~= server or redis.call('HGET', key, 'load') ~= ARGV[2] .. ' ' .. server then return {'no'} end
redis.call('HDEL', key, 'load', 'until')
if ARGV[3] == '' then return {'ok'} end
local srv, cur, max, nmax = unpack(redis.call('HMGET', key, 'srv', 'cur', 'max', 'nmax'))
local top = nmax or max
if top and minus(ARGV[3], top) < 0 then return {'low', top} end
-- A cursor's first segment is followed when a part of it is used: that time says nothing of a whole one.
if srv == server then redis.call('HSET', key, 'at', string.format('%.0f', now)) else redis.call('HDEL', key, 'at') end
if ARGV[6] ~= '' then redis.call('HSET', key, 'store', ARGV[6]) end
if srv == server and cur and max and minus(max, cur) > 0 then
  redis.call('HSET', key, 'ncur', ARGV[3], 'nmax', ARGV[4])
else
  redis.call('HSET', key, 'srv', server, 'cur', ARGV[3], 'max', ARGV[4], 'step', ARGV[5])
  redis.call('HDEL', key, 'ncur', 'nmax')
end
return {'ok'}
`

var installScript = redis.NewScript(installSource)
