#!lua flags=allow-oom
-- Cancels a task that is delayed, or waits for others.
-- KEYS: delayed, its bodies, after, its bodies, recorded outcomes, awaited, stats, dedup key, then the result of each
--       group, then three for each notification
-- ARGV: task id, the marker to keep in place of the result, seconds to keep it, a counter to raise ('' for none),
--       number of groups, then the words of each notification
-- Returns: 1, or 0 if it is neither delayed nor waits for others
--@include say
--@include append_notifications
local id = ARGV[1]
if redis.call('ZREM', KEYS[1], id) + redis.call('ZREM', KEYS[3], id) == 0 then return 0 end
redis.call('HDEL', KEYS[2], id)
redis.call('HDEL', KEYS[4], id, id .. '\n')
redis.pcall('HINCRBY', KEYS[7], 'cancelled', 1)
for i = 9, 8 + tonumber(ARGV[5]) do redis.call('SET', KEYS[i], '! ' .. ARGV[2], 'EX', ARGV[3]) end
-- Free the dedup key: a later publish with it is a new task.
local seen = redis.pcall('GET', KEYS[8])
if seen == id then redis.call('DEL', KEYS[8]) end
local others = redis.call('ZRANGEBYLEX', KEYS[6], '[' .. id .. '\n', '(' .. id .. '\11', 'LIMIT', 0, 1)
if #others > 0 then redis.call('HSETNX', KEYS[5], id .. '\n', '-' .. ARGV[2]) end
if ARGV[4] ~= '' then redis.pcall('HINCRBY', KEYS[7], ARGV[4], 1) end
append_notifications(KEYS[7], 9 + tonumber(ARGV[5]), 6)
return 1
