#!lua flags=allow-oom
-- Settles a cancelled task that a consumer holds: acknowledges it, and appends its notifications.
-- KEYS: stream, stats, attempts, retries, result, awaited, recorded outcomes, once slot, cancelled, runs, then three
--       for each notification
-- ARGV: group, consumer, id, the marker to keep in place of the result, seconds to keep it, a counter to raise (''
--       for none), the task's id, token, its place among the cancelled, seconds to keep the record of its runs, the
--       record of this one, its milliseconds, then the words of each notification
-- Returns: 1, 2 if it has dependents, or 0 if this consumer no longer holds it
--@include json
--@include once
--@include owner
--@include say
--@include append_notifications
--@include record_outcome
--@include runs
local before = already(KEYS[8], ARGV[8])
if before then return before end
if not owns(KEYS[1], ARGV[1], ARGV[2], ARGV[3], KEYS[3]) then
  redis.pcall('HINCRBY', KEYS[2], 'stale', 1)
  return 0
end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
redis.pcall('HDEL', KEYS[3], ARGV[3])
redis.pcall('ZREM', KEYS[4], ARGV[3])
-- Remove the mark: the task was asked to stop, and has stopped.
redis.pcall('HDEL', KEYS[9], ARGV[9] .. '\n' .. ARGV[1])
redis.pcall('HINCRBY', KEYS[2], 'cancelled', 1)
redis.call('SET', KEYS[5], '! ' .. ARGV[4], 'EX', ARGV[5])
if ARGV[6] ~= '' then redis.pcall('HINCRBY', KEYS[2], ARGV[6], 1) end
delete_steps(KEYS[10], ARGV[10])
record_run_end(KEYS[10], ARGV[10], ARGV[11], ARGV[12], clock())
append_notifications(KEYS[2], 11, 13)
return keep(KEYS[8], ARGV[8], record_outcome(KEYS[6], KEYS[7], ARGV[7], ARGV[1], '-' .. ARGV[4]) and 2 or 1)
