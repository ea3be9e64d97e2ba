#!lua flags=allow-oom
-- Removes events that no reader needs, and counts them, so that removals by other programs are noticed.
-- KEYS: stream, relay, readers
-- ARGV: the ledger, the relay's fencing token and owner, the last id that the ledger published, the lowest id that the
--       ledger's consumers keep, the prefix of their names among the readers
-- Returns: {how many, reader, lowest id that it needs or 'none', …}; {-1} if there is a newer relay; {-2} if the last
--          id differs
--@include ids
--@include lowest_of_readers
--@include stream
--@include events
if overtaken(KEYS[2], ARGV[1], ARGV[2], ARGV[3]) then return { -1 } end
if last_of(KEYS[2], ARGV[1], stream(KEYS[1])['last-generated-id']) ~= ARGV[4] then return { -2 } end
local readers, needs, others = redis.call('HGETALL', KEYS[3]), {}, {}
for i = 1, #readers, 2 do
  if string.sub(readers[i], 1, #ARGV[6]) ~= ARGV[6] then
    needs[#needs + 1] = readers[i + 1]
    others[#others + 1], others[#others + 2] = readers[i], readers[i + 1]
  end
end
local lowest = lowest_of(needs, ARGV[5])
local gone = redis.call('XTRIM', KEYS[1], 'MINID', '=', lowest)
if gone > 0 then
  redis.call('HINCRBY', KEYS[2], 'gone', gone)
  redis.call('HSET', KEYS[2], 'trimmed', lowest)
end
return { gone, unpack(others) }
