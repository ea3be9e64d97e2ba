#!lua flags=allow-oom
-- Records the result of a step of a task that this consumer holds; the first recorded result is kept.
-- KEYS: stream, attempts, runs
-- ARGV: group, consumer, id, the step's field, its result, seconds to keep it
-- Returns: the recorded result, or nil if this consumer no longer holds the task
--@include owner
if not owns(KEYS[1], ARGV[1], ARGV[2], ARGV[3], KEYS[2]) then return false end
local found = redis.call('HGET', KEYS[3], ARGV[4])
if not found then
  redis.call('HSET', KEYS[3], ARGV[4], ARGV[5])
  redis.call('HINCRBY', KEYS[3], 'steps', 1)
end
redis.call('EXPIRE', KEYS[3], ARGV[6])
return found or ARGV[5]
