#!lua flags=allow-oom
-- Ends the turn of a task with an ordering key: the next one, if it was put aside, is due at once.
-- KEYS: stream, order, retries, bell
-- ARGV: id, ordering key
-- Returns: 1 if another one was waiting
--@include ids
--@include order
--@include turns
local mine = place(ARGV[2], ARGV[1])
local _, wanted = open(KEYS[1], ARGV[1])
if not wanted then redis.call('ZREM', KEYS[2], mine) end
local next = redis.call('ZRANGEBYLEX', KEYS[2], '(' .. mine, '(' .. ARGV[2] .. '\n~', 'LIMIT', 0, 1)[1]
if not next then return 0 end
local id = entry(ARGV[2], next)
local due = redis.call('ZSCORE', KEYS[3], id)
if not due then return 0 end
-- Below are those that a dead worker may have begun, which are due.
if tonumber(due) > 1000 then redis.call('ZADD', KEYS[3], 1000, id) end
redis.call('XADD', KEYS[4], 'MAXLEN', 1, '*', 'due', '0')
return 1
