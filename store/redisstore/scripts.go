package redisstore

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/store/driver"
)

// A script runs in one atomic step on the server.
type script struct {
	source, hash string
	writes       bool // its answer counts only once replicas have it; see eval
}

func newScript(source string) script {
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
	saidMore     = "more"     // as ok, and there may be more
	saidReplica  = "replica"  // the server is one; nothing was done
	saidReplaced = "replaced" // followed by the store ID that was found, or ""
	saidFormat   = "format"   // followed by the format that was found, or ""
	saidLost     = "lost"     // rows, or names of tags, are missing that were there
	saidLeft     = "left"     // there are rows, and nothing that names the store
	saidLarge    = "large"    // followed by the name of a row that is longer than any may be
)

// The longest that a row and a name in an index may be: nothing longer leaves the server.
const (
	maxValue = driver.MaxValueBytes
	maxField = driver.MaxTableBytes + 1 + driver.MaxNameBytes
)

// The keys of all scripts begin with those of the store, the rows, the names of rows and the
// names of tags; keys of tags follow.

// onMaster begins every script: a replica may let itself be read and even written. An account that may
// not ask for the role is not protected from replicas.
const onMaster = `
local replication = redis.pcall('INFO', 'replication')
if type(replication) ~= 'string' then replication = 'role:master' end
if not string.find(replication, 'role:master', 1, true) then return {'replica'} end
`

// ofStore begins the scripts on a store that was opened: ARGV begins with its ID and format.
const ofStore = onMaster + `
local store = redis.call('HMGET', KEYS[1], 'id', 'format', 'rows')
if store[1] ~= ARGV[1] then return {'replaced', string.sub(store[1] or '', 1, 64)} end
if store[2] ~= ARGV[2] then return {'format', string.sub(store[2] or '', 1, 64)} end
`

// ofRows begins the scripts on rows. Rows that were lost make one of three counts differ, and an
// index of tags that was lost lacks the empty name. ARGV goes on with "1" where a tag that was lost is
// one that there never was. A row that row returns is false where there is none, and 0 for a tag that was
// lost: its name is in the index.
var ofRows = ofStore + fmt.Sprintf(`
local count = tonumber(store[3] or '0')
if redis.call('HLEN', KEYS[2]) ~= count or redis.call('ZCARD', KEYS[3]) ~= count or not redis.call('ZSCORE', KEYS[4], '') then return {'lost'} end
local at, key, large = 3, 4, nil
local function take()
  at = at + 1
  return ARGV[at]
end
local function row()
  local r = {name = take()}
  if string.byte(r.name) == 0 then
    key = key + 1
    r.tag, r.key = string.sub(r.name, 2), KEYS[key]
    r.is = redis.call('GET', r.key)
    if not r.is and ARGV[3] ~= '1' and redis.call('ZSCORE', KEYS[4], r.tag) then r.is = 0 end
  else
    r.is = redis.call('HGET', KEYS[2], r.name)
  end
  if r.is and r.is ~= 0 and #r.is > %d then large = r.name end
  return r
end
`, maxValue)

// openScript finds the store, or makes it. ARGV: an ID for a new store, "" to make none, and its
// format. It answers ok, ID and format, "" where there is none.
var openScript = newWrite(onMaster + `
if redis.call('EXISTS', KEYS[1]) == 0 and ARGV[1] ~= '' then
  if redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) > 0 then return {'left'} end
  redis.call('HSET', KEYS[1], 'id', ARGV[1], 'format', ARGV[2])
  redis.call('ZADD', KEYS[4], 0, '')
end
local store = redis.call('HMGET', KEYS[1], 'id', 'format')
return {'ok', string.sub(store[1] or '', 1, 64), string.sub(store[2] or '', 1, 64)}`)

// pingScript tries to write.
var pingScript = newWrite(ofStore + `
redis.call('HSETNX', KEYS[1], 'id', ARGV[1])
return {'ok'}`)

// readScript answers ok and rows, as many of them as are about so many bytes. ARGV goes on with
// that number, and the names of the rows.
var readScript = newScript(ofRows + `
local most, size, found = tonumber(take()), 0, {'ok'}
while at < #ARGV and size < most do
  local is = row().is
  if large then return {'large', large} end
  found[#found + 1] = is
  if is and is ~= 0 then size = size + #is end
end
return found`)

// listScript answers ok, or more, and the names of rows, each with its value, or those of tags alone.
// ARGV goes on with "tags" or "rows", the range's bounds, how many, how many bytes.
var listScript = newScript(ofRows + fmt.Sprintf(`
local tags = take() == 'tags'
local names = redis.call('ZRANGEBYLEX', tags and KEYS[4] or KEYS[3], take(), take(), 'LIMIT', 0, take())
local found, size, most = {#names < tonumber(ARGV[at]) and 'ok' or 'more'}, 0, tonumber(take())
for i, name in ipairs(names) do
  if #name > %d then return {'large', string.sub(name, 1, 64)} end
  found[#found + 1] = name
  if not tags then
    local value = redis.call('HGET', KEYS[2], name)
    if not value then return {'lost'} end
    if #value > %d then return {'large', name} end
    found[#found + 1] = value
    size = size + #value
    if size > most and i < #names then
      found[1] = 'more'
      break
    end
  end
end
return found`, maxField, maxValue))

// stepScript does a driver.Step. ARGV goes on with its lists, each as a number and so many rows: a
// name, and what is said of it, where "" stands for no row:
//
//	If     "1" for at least, and the value
//	Raise  the value
//	Then   the value that is expected, and the next one
//	Each   likewise
//	Look
//
// It answers ok, who answers, and 1 where the step was done; then the rows of If where it was not,
// those of Then and Each, with 1 for a change that was made, and those of Look. Nothing is written before
// every row was read that may have another type, and Redis refuses a script for its memory,
// its disk or its replicas at the first write alone: no step is done by half. Values are compared as bytes:
// Lua compares text as the server's locale has it.
var stepScript = newWrite(ofRows + `
local server = redis.pcall('INFO', 'server')
local run = type(server) == 'string' and string.match(server, '\nrun_id:(%x+)')
local history = string.match(replication, '\nmaster_replid:(%x+)')
local primary = run and 'run ' .. run .. (history and ' history ' .. history or '') or ''
local function below(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end
local function same(r, old)
  if old == '' then return r.is == false end
  return r.is == old
end
local function list(of)
  local all = {}
  for i = 1, tonumber(take()) do
    all[i] = row()
    if of then of(all[i]) end
  end
  return all
end
local now = count
local function write(r, to)
  if to == '' and r.is then
    if r.tag then
      redis.call('DEL', r.key)
      redis.call('ZREM', KEYS[4], r.tag)
    else
      redis.call('HDEL', KEYS[2], r.name)
      redis.call('ZREM', KEYS[3], r.name)
      now = now - 1
    end
  elseif to ~= '' then
    if r.tag then redis.call('SET', r.key, to) else redis.call('HSET', KEYS[2], r.name, to) end
    if r.tag and not r.is then
      redis.call('ZADD', KEYS[4], 0, r.tag)
    elseif not r.is then
      redis.call('ZADD', KEYS[3], 0, r.name)
      now = now + 1
    end
  end
end
local met = true
local conditions = list(function(r)
  local least, want = take() == '1', take()
  if least then
    met = met and type(r.is) == 'string' and not below(r.is, want)
  else
    met = met and same(r, want)
  end
end)
local raises = list(function(r) r.to = take() end)
local function change(r) r.old, r.to = take(), take() end
local together = list(function(r)
  change(r)
  met = met and same(r, r.old)
end)
local each = list(change)
if large then return {'large', large} end
if met then
  for _, r in ipairs(raises) do
    if r.is == false or type(r.is) == 'string' and below(r.is, r.to) then write(r, r.to) end
  end
  for _, r in ipairs(together) do write(r, r.to) end
  for _, r in ipairs(each) do
    r.done = same(r, r.old)
    if r.done then write(r, r.to) end
  end
  if now ~= count then redis.call('HSET', KEYS[1], 'rows', string.format('%d', now)) end
end
local found = {'ok', primary, met and 1 or 0}
local function tell(r, done) found[#found + 1] = done and 1 or r.is end
if not met then
  for _, r in ipairs(conditions) do tell(r) end
end
for _, r in ipairs(together) do tell(r, met) end
for _, r in ipairs(each) do tell(r, r.done) end
for _, r in ipairs(list()) do tell(r) end
if large then return {'large', large} end
return found`)

// keys makes the names of keys; it is their prefix. The braces have a Cluster keep all of them
// on one shard.
type keys string

func (k keys) store() string          { return string(k) + "{hapax}:store" }
func (k keys) rows() string           { return string(k) + "{hapax}:rows" }
func (k keys) names() string          { return string(k) + "{hapax}:names" }
func (k keys) tags() string           { return string(k) + "{hapax}:tags" }
func (k keys) tag(name string) string { return string(k) + "{hapax}:tag:" + name }

// of returns the keys that a script on these rows is told of.
func (k keys) of(rows ...driver.Key) []string {
	all := make([]string, 4, 4+len(rows))
	all[0], all[1], all[2], all[3] = k.store(), k.rows(), k.names(), k.tags()
	for _, row := range rows {
		if row.Table == "" {
			all = append(all, k.tag(row.Name))
		}
	}
	return all
}

// field returns what scripts call a row; those with a table are called so in the hash of all rows,
// too. Names have no control characters.
func field(key driver.Key) string { return key.Table + "\x00" + key.Name }

// refused returns what stands against what was asked for, or nil.
func (s *space) refused(r reply) error {
	switch r.text(0) {
	case saidOK, saidMore:
		return nil
	case saidReplica:
		return errReplica()
	case saidReplaced:
		return replaced(r.text(1), s.id)
	case saidFormat:
		return s.checkFormat(r.text(1))
	case saidLost:
		return fmt.Errorf("%w: redis: rows are gone: key %q, key %q and the field rows of %q do not have the same count, or key %q lacks the empty name",
			hapax.ErrStoreRolledBack, s.keys.rows(), s.keys.names(), s.keys.store(), s.keys.tags())
	case saidLeft:
		return fmt.Errorf("%w: redis: key %q, which names the store, is gone, and %q, %q or %q is there: put it back, remove all that begin with %q, or choose another prefix",
			hapax.ErrStoreCorrupt, s.keys.store(), s.keys.rows(), s.keys.names(), s.keys.tags(), s.keys)
	case saidLarge:
		return fmt.Errorf("%w: redis: row %.80q under %q is longer than the %d bytes that one may have", hapax.ErrStoreCorrupt, r.text(1), s.keys, maxValue)
	}
	return unexpected(r)
}

// unexpected is the error for what no script answers.
func unexpected(r reply) error {
	return fmt.Errorf("%w: redis: a script answered %d words, the first of them %.80q", hapax.ErrStoreCorrupt, len(r), r.text(0))
}
