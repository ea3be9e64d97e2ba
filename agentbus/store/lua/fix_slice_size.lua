#!lua
-- Returns how many rows each slice of a batch may have.
-- It is the number with which the batch was first written, regardless of the queue's present bound,
-- because slices of a different size have different digests.
-- KEYS: the sink's record
-- ARGV: the batch, seconds to keep the record, preferred number of rows, number of rows if none is
--       recorded
-- Returns: number of rows
local call, key, batch = redis.call, KEYS[1], ARGV[1]
-- The member sorts between the digests of this batch and of the next one, so that it is forgotten
-- with them.
local at = batch .. '.5'
local known = call('ZRANGEBYSCORE', key, at, at)[1]
if known then return tonumber(string.match(known, '%d+$')) end
if call('ZRANGEBYSCORE', key, batch, batch, 'LIMIT', 0, 1)[1] then return tonumber(ARGV[4]) end
if ARGV[3] ~= ARGV[4] then
  call('ZADD', key, at, 'rows ' .. batch .. ' ' .. ARGV[3])
  call('EXPIRE', key, ARGV[2])
end
return tonumber(ARGV[3])
