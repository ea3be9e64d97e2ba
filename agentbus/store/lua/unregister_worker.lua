#!lua flags=allow-oom
-- Unregisters a worker, and deletes the orders addressed to it alone.
-- KEYS: beats, the worker's record, paused
-- ARGV: worker, the field of its orders, the silence required in ms, 0 if it leaves by itself
-- Returns: 1, or 0 if it has sent a heartbeat since
--@include replace
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local seen, silent = replace(KEYS[1], 'ZSCORE', ARGV[1]), tonumber(ARGV[3])
if silent > 0 and seen and tonumber(seen) > now - silent then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
replace(KEYS[3], 'HDEL', ARGV[2])
return 1
