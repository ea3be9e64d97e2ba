#!lua flags=no-writes
-- Goes so many entries along a stream, to find where they end.
-- KEYS: stream
-- ARGV: id to start after, id to end with, how many entries to go
-- Returns: {how many there were, id of the last of them ('' for none)}
local left, seen, last = tonumber(ARGV[3]), 0, ''
local from = '(' .. ARGV[1]
while left > 0 do
  -- Entries may be large, and all that are looked at in one call are in memory.
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
