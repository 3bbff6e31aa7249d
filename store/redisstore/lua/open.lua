-- Finds the store, or makes it. ARGV: an ID for a new store, "" to make none, its format, and why
-- nobody may use it yet, or "". It answers ok, ID, format, "" where there is none, and that reason.
if redis.call('EXISTS', KEYS[1]) == 0 and ARGV[1] ~= '' then
  if redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) > 0 then return {'left'} end
  redis.call('HSET', KEYS[1], 'id', ARGV[1], 'format', ARGV[2])
  if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'closed', ARGV[3]) end
  redis.call('ZADD', KEYS[4], 0, '')
end
local store = redis.call('HMGET', KEYS[1], 'id', 'format', 'closed')
return {'ok', string.sub(store[1] or '', 1, 64), string.sub(store[2] or '', 1, 64), string.sub(store[3] or '', 1, 512)}
