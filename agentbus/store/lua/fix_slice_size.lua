#!lua
-- Says how many rows each slice of a batch may have.
-- It is the number with which the batch was first written, whatever the queue's bound is now, since a slice of another size
-- has another digest.
-- KEYS: the sink's record
-- ARGV: the batch, seconds to keep the record, how many rows they should have, how many they have where nothing says it
-- Returns: how many rows they have
local call, key, batch = redis.call, KEYS[1], ARGV[1]
-- Between the digests of this batch and those of the next one, so that it is forgotten with them.
local at = batch .. '.5'
local known = call('ZRANGEBYSCORE', key, at, at)[1]
if known then return tonumber(string.match(known, '%d+$')) end
if call('ZRANGEBYSCORE', key, batch, batch, 'LIMIT', 0, 1)[1] then return tonumber(ARGV[4]) end
if ARGV[3] ~= ARGV[4] then
  call('ZADD', key, at, 'rows ' .. batch .. ' ' .. ARGV[3])
  call('EXPIRE', key, ARGV[2])
end
return tonumber(ARGV[3])
