#!lua flags=allow-oom
-- Puts a task aside until it is due again; it stays pending, so that it is not trimmed.
-- KEYS: stream, stats, attempts, retries, once slot
-- ARGV: group, consumer, id, delay in ms, attempts so far, the consumer that holds tasks put aside, token
-- Returns: when it is due in ms, or '' if this consumer no longer holds the task
--@include once
--@include owner
local before = already(KEYS[5], ARGV[7])
if before then return before end
if not owns(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) then
  redis.call('HINCRBY', KEYS[2], 'stale', 1)
  return ''
end
local time = redis.call('TIME')
local due = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[4])
redis.call('HSET', KEYS[3], ARGV[3], ARGV[5])
redis.call('ZADD', KEYS[4], due, ARGV[3])
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[6], 0, ARGV[3], 'JUSTID')
redis.call('HINCRBY', KEYS[2], 'retried', 1)
return keep(KEYS[5], ARGV[7], string.format('%d', due))
