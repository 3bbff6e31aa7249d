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
// one that there never was. What a row is is false where there is none, and 0 for a tag that was
// lost: its name is in the index.
var ofRows = ofStore + fmt.Sprintf(`
local count = tonumber(store[3] or '0')
if redis.call('HLEN', KEYS[2]) ~= count or redis.call('ZCARD', KEYS[3]) ~= count or not redis.call('ZSCORE', KEYS[4], '') then return {'lost'} end
local at, key, large = 3, 4, nil
local function take()
  at = at + 1
  return ARGV[at]
end
local function row(name)
  if string.byte(name) ~= 0 then return {name = name} end
  key = key + 1
  return {tag = string.sub(name, 2), key = KEYS[key]}
end
local function read(r)
  r.is = r.tag and redis.call('GET', r.key) or not r.tag and redis.call('HGET', KEYS[2], r.name)
  if not r.is and r.tag and ARGV[3] ~= '1' and redis.call('ZSCORE', KEYS[4], r.tag) then r.is = 0 end
  if r.is and r.is ~= 0 and #r.is > %d then large = r.name or r.tag end
  return r.is
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
  local is = read(row(take()))
  if large then return {'large', large} end
  found[#found + 1] = is
  if is and is ~= 0 then size = size + #is end
end
return found`)

// listScript answers ok, or more, and the names of rows, each with its value, or those of tags alone.
// ARGV goes on with "tags" or "rows", the range's bounds, how many, about how many bytes.
var listScript = newScript(ofRows + fmt.Sprintf(`
local tags, from, to, n, most = take() == 'tags', take(), take(), tonumber(take()), tonumber(take())
local names = redis.call('ZRANGEBYLEX', KEYS[tags and 4 or 3], from, to, 'LIMIT', 0, n)
local found, size = {#names < n and 'ok' or 'more'}, 0
for _, name in ipairs(names) do
  if size >= most then
    found[1] = 'more'
    break
  end
  found[#found + 1] = name
  if not tags then
    local is = read({name = name})
    if not is then return {'lost'} end
    found[#found + 1], size = is, size + #is
  end
  if #name > %d then large = string.sub(name, 1, 64) end
  if large then return {'large', large} end
end
return found`, maxField))

// stepScript does a driver.Step. ARGV goes on with four words for each row: its name; whether it is to be
// the same, at least or absent ("same" of ""), raised, or changed ("then", "each"), or looked at; the
// value that is expected, and the next one, where "" stands for no row. It answers ok, who answers, 1 where the step was done, and each
// row as it is, or 1 where it was written as it was to be.
//
// Nothing is written before every row was read that may have another type, and Redis refuses a script
// for its memory, its disk or its replicas at the first write alone: no step is done by half. Values are
// compared as bytes: Lua compares text as the server's locale has it.
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
local rows, met, now = {}, true, count
while at < #ARGV do
  local r = row(take())
  r.what, r.old, r.to = take(), take(), take()
  if r.what ~= 'look' then
    read(r)
    r.same = r.is == (r.old ~= '' and r.old)
    if r.what == 'same' or r.what == 'then' then met = met and r.same end
    if r.what == 'least' then met = met and type(r.is) == 'string' and not below(r.is, r.old) end
    if r.what == 'raise' then r.same = r.is == false or type(r.is) == 'string' and below(r.is, r.to) end
  end
  rows[#rows + 1] = r
end
if large then return {'large', large} end
local function write(r)
  local added = (r.to ~= '' and 1 or 0) - (r.is and 1 or 0)
  if r.tag then
    if r.to ~= '' then redis.call('SET', r.key, r.to) else redis.call('DEL', r.key) end
  else
    if r.to ~= '' then redis.call('HSET', KEYS[2], r.name, r.to) else redis.call('HDEL', KEYS[2], r.name) end
    now = now + added
  end
  local index, name = KEYS[r.tag and 4 or 3], r.tag or r.name
  if added == 1 then redis.call('ZADD', index, 0, name) elseif added == -1 then redis.call('ZREM', index, name) end
  r.is = 1
end
local writes = {raise = true, ['then'] = true, each = true}
for _, r in ipairs(rows) do
  if met and writes[r.what] and r.same then write(r) end
end
if now ~= count then redis.call('HSET', KEYS[1], 'rows', string.format('%d', now)) end
local found = {'ok', primary, met and 1 or 0}
for _, r in ipairs(rows) do
  if r.what == 'look' then read(r) end
  found[#found + 1] = r.is
end
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
