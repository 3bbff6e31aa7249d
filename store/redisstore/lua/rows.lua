-- Begins the scripts on rows. ARGV goes on with "mend" where a tag that was lost is one that there
-- never was.
--
-- Rows that were lost make one of three counts differ, and an index of tags that was lost lacks
-- the empty name.
local count = tonumber(store[3] or '0')
if redis.call('HLEN', KEYS[2]) ~= count or redis.call('ZCARD', KEYS[3]) ~= count or not redis.call('ZSCORE', KEYS[4], '') then return {'lost'} end

local at, key, large = 3, 4, nil

local function take()
  at = at + 1
  return ARGV[at]
end

-- A row of a tag is named by a zero byte and the tag, and its key is the next one in KEYS.
local function row(name)
  if string.byte(name) ~= 0 then return {name = name} end
  key = key + 1
  return {tag = string.sub(name, 2), key = KEYS[key]}
end

-- What a row is is false where there is none, and 0 for a tag that was lost: its name is in the
-- index. What is too long does not leave the server.
--
-- A tag that is too long, or no string, is '' as one that is empty: it is for its own callers to
-- complain, and equals nothing that is expected. For what else is too long the script ends.
local function read(r)
  if not r.tag then
    r.is = redis.call('HGET', KEYS[2], r.name)
    if r.is and #r.is > MAX_VALUE then large = r.name end
    return r.is
  end
  r.is = redis.pcall('GET', r.key)
  if type(r.is) == 'table' then
    if not string.match(r.is.err, '^-?WRONGTYPE') then error(r.is.err) end
    r.is = ''
  end
  if r.is and #r.is > MAX_VALUE then r.is = '' end
  if not r.is and ARGV[3] ~= 'mend' and redis.call('ZSCORE', KEYS[4], r.tag) then r.is = 0 end
  return r.is
end
