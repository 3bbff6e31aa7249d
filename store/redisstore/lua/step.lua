-- Does a driver.Step. ARGV goes on with four words for each row: its name; whether it has to be the
-- same or at least, is raised, or changed ("then", "each"), or looked at; the value that is
-- expected, and the next one, where "" stands for no row. It answers ok, who answers, 1 where the
-- step was done, and each row as it is, or 1 where it was written.
local server = redis.pcall('INFO', 'server')
local run = type(server) == 'string' and string.match(server, '\nrun_id:(%x+)')
local history = string.match(replication, '\nmaster_replid:(%x+)')
local primary = run and 'run ' .. run .. (history and ' history ' .. history or '') or ''

-- Values are compared as bytes: Lua compares text as the server's locale has it.
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

-- Nothing is written before every row was read that may have another type, and Redis refuses a
-- script for its memory, its disk or its replicas at the first write alone: no step is done by
-- half.
if large then return {'large', large} end

-- A name that the index lacks, for whatever reason, is added with the next change.
local function write(r)
  local index, name = KEYS[r.tag and 4 or 3], r.tag or r.name
  if r.to ~= '' then
    if r.tag then redis.call('SET', r.key, r.to) else redis.call('HSET', KEYS[2], name, r.to) end
    redis.call('ZADD', index, 0, name)
  else
    if r.tag then redis.call('DEL', r.key) else redis.call('HDEL', KEYS[2], name) end
    redis.call('ZREM', index, name)
  end
  if not r.tag then now = now + (r.to ~= '' and 1 or 0) - (r.is and 1 or 0) end
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
return found
