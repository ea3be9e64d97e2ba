#!lua flags=allow-oom
-- Ends the turn of a task with an ordering key: the next one, if it was put aside, is due at once.
-- KEYS: stream, order, retries, bell, the stream of retries, its retries, where moved tasks are
-- ARGV: id, ordering key, group, the part of a task's id after the entry's id
-- Returns: 1 if another one was waiting
--@include ids
--@include order
--@include moved
--@include turns
local mine = place(ARGV[2], ARGV[1])
local _, wanted = open(KEYS[1], ARGV[1], KEYS[5], KEYS[7], ARGV[4])
if not wanted then redis.call('ZREM', KEYS[2], mine) end
local next = redis.call('ZRANGEBYLEX', KEYS[2], '(' .. mine, '(' .. ARGV[2] .. '\n~', 'LIMIT', 0, 1)[1]
if not next then return 0 end
local id = entry(ARGV[2], next)
local retries, due = KEYS[3], redis.call('ZSCORE', KEYS[3], id)
if not due then
  id, retries = moved(KEYS[7], KEYS[5], id .. ARGV[4], ARGV[3]), KEYS[6]
  due = id and redis.call('ZSCORE', retries, id)
end
if not due then return 0 end
-- Below are those that a dead worker may have begun, which are due.
if tonumber(due) > 1000 then redis.call('ZADD', retries, 1000, id) end
redis.call('XADD', KEYS[4], 'MAXLEN', 1, '*', 'due', '0')
return 1
