#!lua flags=allow-oom
-- Removes events that no reader needs, and counts them, so that removals by other programs are noticed.
-- KEYS: stream, relay, readers
-- ARGV: the relay's fencing token, the lowest id that consumers keep, then readers whose 'none' the ledger has recorded
-- Returns: {how many, reader, lowest id that it needs or 'none', …}; {-1} if there is a newer relay
--@include ids
--@include lowest_of_readers
local token = redis.call('HGET', KEYS[2], 'token')
if token and tonumber(token) > tonumber(ARGV[1]) then return { -1 } end
for i = 3, #ARGV do
  -- The reader may have returned, and need events again.
  if redis.call('HGET', KEYS[3], ARGV[i]) == 'none' then redis.call('HDEL', KEYS[3], ARGV[i]) end
end
local gone = redis.call('XTRIM', KEYS[1], 'MINID', '=', lowest_of_readers(KEYS[3], ARGV[2]))
if gone > 0 then redis.call('HINCRBY', KEYS[2], 'gone', gone) end
return { gone, unpack(redis.call('HGETALL', KEYS[3])) }
