#!lua flags=allow-oom
-- Gives back unstarted tasks: due at once for any worker, without counting an attempt.
-- KEYS: stream, attempts, retries
-- ARGV: group, consumer, the consumer that holds deferred tasks, number of uncounted attempts, then
--       the ids
-- Returns: number of tasks that this consumer still held
--@include owner
--@include replace
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local given = 0
for i = 5, #ARGV do
  if owns(KEYS[1], ARGV[1], ARGV[2], ARGV[i], KEYS[2]) then
    replace(KEYS[2], 'HSETNX', ARGV[i], ARGV[4])
    -- A task that a dead worker may have begun keeps its score, so that it still runs alone.
    local suspected = string.match(redis.call('HGET', KEYS[2], ARGV[i]), '^(%d+) [^-]')
    replace(KEYS[3], 'ZADD', suspected and math.min(suspected, 999) or now, ARGV[i])
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, ARGV[i], 'JUSTID')
    given = given + 1
  end
end
return given
