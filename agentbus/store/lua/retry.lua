#!lua flags=allow-oom
-- Puts a task aside until it is due again; it stays pending, so that it is not trimmed.
-- KEYS: stream, stats, attempts, retries, once slot, cancelled, runs
-- ARGV: group, consumer, id, delay in ms, attempts so far, the consumer that holds tasks put aside, token,
--       the task's place among the cancelled, seconds to keep the record of its runs, the record of this one ('' for
--       none), its milliseconds
-- Returns: when it is due in ms, '' if this consumer no longer holds the task, or 'cancelled' if it was cancelled and
--          must be settled as that
--@include once
--@include owner
--@include runs
local before = already(KEYS[5], ARGV[7])
if before then return before end
if not owns(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) then
  redis.pcall('HINCRBY', KEYS[2], 'stale', 1)
  return ''
end
if type(redis.pcall('HGET', KEYS[6], ARGV[8])) == 'string' then return 'cancelled' end
local time = redis.call('TIME')
local due = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[4])
redis.call('HSET', KEYS[3], ARGV[3], ARGV[5])
redis.call('ZADD', KEYS[4], due, ARGV[3])
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[6], 0, ARGV[3], 'JUSTID')
redis.pcall('HINCRBY', KEYS[2], 'retried', 1)
ran(KEYS[7], ARGV[9], ARGV[10], ARGV[11])
return keep(KEYS[5], ARGV[7], string.format('%d', due))
