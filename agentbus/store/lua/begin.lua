#!lua flags=allow-oom
-- Counts an attempt at a redelivered task, or at one that may run only once, before its handler starts.
-- KEYS: stream, attempts
-- ARGV: group, consumer, id, uncounted attempts, token of this attempt, 1 if each of its attempts is counted
--       before it starts: a number without a token is then of a worker that died before that
-- Returns: the number of this attempt, or 0 if this consumer no longer holds the task
--@include owner
if not owns(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) then return 0 end
-- A request resent after a lost answer counts no further attempt.
local number, token = string.match(redis.call('HGET', KEYS[2], ARGV[3]) or ARGV[4], '^(%d+) ?(.*)$')
if token == ARGV[5] then return tonumber(number) end
if ARGV[6] == '1' and token == '' then number = 0 end
redis.call('HSET', KEYS[2], ARGV[3], string.format('%d %s', number + 1, ARGV[5]))
return number + 1
