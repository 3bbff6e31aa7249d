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
local function read(r)
  if r.tag then r.is = redis.call('GET', r.key) else r.is = redis.call('HGET', KEYS[2], r.name) end
  if not r.is and r.tag and ARGV[3] ~= 'mend' and redis.call('ZSCORE', KEYS[4], r.tag) then r.is = 0 end
  if r.is and r.is ~= 0 and #r.is > MAX_VALUE then large = r.name or r.tag end
  return r.is
end
