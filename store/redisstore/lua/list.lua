-- Answers ok, or more, and the names of rows, each with its value, or those of tags alone. ARGV
-- goes on with "tags" or "rows", the range's bounds, how many, about how many bytes.
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
  if #name > MAX_NAME then large = string.sub(name, 1, 64) end
  if large then return {'large', large} end
end
return found
