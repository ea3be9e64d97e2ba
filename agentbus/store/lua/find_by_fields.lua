#!lua flags=no-writes
-- Reads streams backwards, for the entries that have the given values in the given fields.
-- KEYS: the streams
-- ARGV: where to begin in each ('+': its newest entry), the id to stop at, how many entries to examine in each,
--       number to return of each, how many bytes to return of a value, then fields and their values ('' for an absent
--       one)
-- Returns: for each stream {where to go on ('' at its end), then for each entry its id, the bytes of its longest value,
--          and its fields and values}; for fewer streams if these were long, so that no call blocks the server
--@include truncate
local first, last, most, wanted, width = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local budget, bytes, reply = 1000, 1048576, {}
local asked, needed = {}, 0
for i = 6, #ARGV, 2 do
  asked[ARGV[i]] = ARGV[i + 1]
  if ARGV[i + 1] ~= '' then needed = needed + 1 end
end
local function matches(flat)
  local met = 0
  for i = 1, #flat - 1, 2 do
    local value = asked[flat[i]]
    if value then
      if value ~= flat[i + 1] then return false end
      if value ~= '' then met = met + 1 end
    end
  end
  return met == needed
end
local function add(found, entry)
  local flat, longest = {}, 0
  for i, word in ipairs(entry[2]) do
    if i % 2 == 0 then longest = math.max(longest, #word) end
    flat[i] = truncate(word, width)
  end
  found[#found + 1] = { entry[1], longest, flat }
end
for at, key in ipairs(KEYS) do
  if at > 1 and (budget <= 0 or bytes <= 0) then break end
  local found, left, from, ended = { '' }, most, first, redis.call('TYPE', key)['ok'] ~= 'stream'
  while not ended and left > 0 and #found <= wanted and (left == most or (budget > 0 and bytes > 0)) do
    local count = math.min(50, left)
    local page = redis.call('XREVRANGE', key, from, last, 'COUNT', count)
    local number = 0
    for _, entry in ipairs(page) do
      if #found > wanted then break end
      number, from = number + 1, '(' .. entry[1]
      for i = 2, #entry[2], 2 do bytes = bytes - #entry[2][i] end
      if matches(entry[2]) then add(found, entry) end
    end
    left, budget = left - number, budget - number
    ended = number == #page and #page < count
  end
  if not ended then found[1] = from end
  reply[at] = found
end
return reply
