#!lua flags=allow-oom
-- Acknowledges one task with its result, and appends its notifications.
-- KEYS: stream, stats, attempts, result, awaited, recorded outcomes, once slot, runs, retries, then three for each
--       notification
-- ARGV: group, consumer, id, the handler's milliseconds, result ('' to keep none), seconds to keep it,
--       a counter to raise ('' for none), the task's id, token, seconds to keep the record of its runs, the record of
--       this one ('' for none), then the words of each notification
-- Returns: 1, 2 if it has dependents, or 0 if this consumer no longer holds it
--@include json
--@include once
--@include owner
--@include say
--@include append_notifications
--@include record_outcome
--@include runs
local before = already(KEYS[7], ARGV[9])
if before then return before end
if not owns(KEYS[1], ARGV[1], ARGV[2], ARGV[3], KEYS[3]) then
  redis.pcall('HINCRBY', KEYS[2], 'stale', 1)
  return 0
end
if ARGV[5] ~= '' then redis.call('SET', KEYS[4], ARGV[5], 'EX', ARGV[6]) end
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
redis.pcall('HDEL', KEYS[3], ARGV[3])
-- A task held by hand also has a due time, the end of its visibility: remove it.
redis.pcall('ZREM', KEYS[9], ARGV[3])
redis.pcall('HINCRBY', KEYS[2], 'processed', 1)
redis.pcall('HINCRBY', KEYS[2], 'busy_ms', ARGV[4])
if ARGV[7] ~= '' then redis.pcall('HINCRBY', KEYS[2], ARGV[7], 1) end
delete_steps(KEYS[8], ARGV[10])
record_run_end(KEYS[8], ARGV[10], ARGV[11], ARGV[4], clock())
append_notifications(KEYS[2], 10, 12)
return keep(KEYS[7], ARGV[9], record_outcome(KEYS[5], KEYS[6], ARGV[8], ARGV[1], '+') and 2 or 1)
