#!lua flags=allow-oom
-- Acknowledges one task with its result.
-- KEYS: stream, stats, attempts, result (only if there is one)
-- ARGV: group, consumer, id, milliseconds that the handler took, result, seconds to keep it
-- Returns: 1, or 0 if the task is not this consumer's any longer
--@include owner
if not owns(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) then
  redis.call('HINCRBY', KEYS[2], 'stale', 1)
  return 0
end
if KEYS[4] then redis.call('SET', KEYS[4], ARGV[5], 'EX', ARGV[6]) end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
redis.call('HDEL', KEYS[3], ARGV[3])
redis.call('HINCRBY', KEYS[2], 'processed', 1)
redis.call('HINCRBY', KEYS[2], 'busy_ms', ARGV[4])
return 1
