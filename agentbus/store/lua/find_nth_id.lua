#!lua flags=no-writes
-- Finds the id that lies a given number of entries further on in a stream.
-- KEYS: stream
-- ARGV: id to start after, last id, number of entries
-- Returns: {number of entries found, id of the last of them ('' if none)}
local left, seen, last = tonumber(ARGV[3]), 0, ''
local from = '(' .. ARGV[1]
while left > 0 do
  -- Read in pages: entries may be large, and each call holds all that it reads in memory.
  local wanted = math.min(100, left)
  local page = redis.call('XRANGE', KEYS[1], from, ARGV[2], 'COUNT', wanted)
  if #page > 0 then
    last = page[#page][1]
    from = '(' .. last
    seen = seen + #page
    left = left - #page
  end
  if #page < wanted then break end
end
return { seen, last }
