#!lua flags=allow-oom
-- Counts an attempt at a task that was delivered before, ahead of its handler's start.
-- KEYS: stream, attempts
-- ARGV: group, consumer, id, attempts that nobody counted
-- Returns: the number of this attempt, or 0 if the task is not this consumer's any longer
--@include owner
if not owns(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) then return 0 end
redis.call('HSETNX', KEYS[2], ARGV[3], ARGV[4])
return redis.call('HINCRBY', KEYS[2], ARGV[3], 1)
