#!lua flags=allow-oom
-- Forgets a done task of the retry stream, and trims the stream. Nothing is done if the server has lost
-- that it is done.
-- KEYS: the retry stream, the index of moved tasks
-- ARGV: the task's former place, a newline, and the group
-- Returns: number of trimmed entries
--@include ids
--@include undelivered
--@include lowest_of_readers
--@include lowest_needed
--@include moved_entry
local place, group = string.match(ARGV[1], '^(.*)\n(.-)$')
if moved_entry(KEYS[2], KEYS[1], place, group) then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1])
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local lowest = lowest_needed(KEYS[1])
return lowest and redis.call('XTRIM', KEYS[1], 'MINID', '=', lowest) or 0
