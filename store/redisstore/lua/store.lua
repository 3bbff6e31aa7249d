-- Begins the scripts on a store that was opened. ARGV begins with its ID and format.
local store = redis.call('HMGET', KEYS[1], 'id', 'format', 'rows')
if store[1] ~= ARGV[1] then return {'replaced', string.sub(store[1] or '', 1, 64)} end
if store[2] ~= ARGV[2] then return {'format', string.sub(store[2] or '', 1, 64)} end
