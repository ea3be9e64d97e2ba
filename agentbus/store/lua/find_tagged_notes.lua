#!lua flags=no-writes
-- Finds the newest titles that have any, or every, given tag.
-- KEYS: the tags' zsets
-- ARGV: 1 to require every tag, maximum number of titles
-- Returns: {title, unix time, title, unix time, …}, newest first
local latest = tonumber(ARGV[2])
local best, found = {}, {}
if ARGV[1] == '1' then
  local smallest, size = KEYS[1], math.huge
  for _, key in ipairs(KEYS) do
    local n = redis.call('ZCARD', key)
    if n < size then smallest, size = key, n end
  end
  local from = 0
  while #found < latest and from < size do
    local page = redis.call('ZREVRANGE', smallest, from, from + 99, 'WITHSCORES')
    for i = 1, #page, 2 do
      local everywhere, at = true, page[i + 1]
      for _, key in ipairs(KEYS) do
        if not redis.call('ZSCORE', key, page[i]) then
          everywhere = false
          break
        end
      end
      if everywhere and #found < latest then found[#found + 1] = { page[i], at } end
    end
    from = from + 100
  end
else
  for _, key in ipairs(KEYS) do
    local page = redis.call('ZREVRANGE', key, 0, latest - 1, 'WITHSCORES')
    for i = 1, #page, 2 do
      local at = best[page[i]]
      if not at then
        at = { page[i], page[i + 1] }
        best[page[i]] = at
        found[#found + 1] = at
      elseif tonumber(page[i + 1]) > tonumber(at[2]) then
        at[2] = page[i + 1]
      end
    end
  end
  table.sort(found, function(a, b)
    local x, y = tonumber(a[2]), tonumber(b[2])
    if x ~= y then return x > y end
    return a[1] > b[1]
  end)
end
local reply = {}
for i = 1, math.min(latest, #found) do
  reply[#reply + 1] = found[i][1]
  reply[#reply + 1] = found[i][2]
end
return reply
