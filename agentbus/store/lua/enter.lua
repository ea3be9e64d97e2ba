#!lua flags=allow-oom
-- Lets a task with an ordering key begin if none before it with this key is still to be done; puts it aside if one is.
-- KEYS: stream, order, attempts, retries
-- ARGV: group, consumer, id, ordering key, the consumer that holds what was put aside, attempts made so far,
--       milliseconds after which a task that was put aside looks again
-- Returns: 1 if it may begin, 0 if it was put aside, -1 if it is not this consumer's any longer
--@include ids
--@include owner
--@include order
--@include turns
local stream, id, key = KEYS[1], ARGV[3], ARGV[4]
if not owns(stream, ARGV[1], ARGV[2], id) then return -1 end
local from, to = '[' .. key .. '\n', '(' .. place(key, id)
while true do
  local head = redis.call('ZRANGEBYLEX', KEYS[2], from, to, 'LIMIT', 0, 1)[1]
  if not head then return 1 end
  local groups, wanted = open(stream, entry(key, head))
  if wanted and groups[ARGV[1]] then break end
  if not wanted then redis.call('ZREM', KEYS[2], head) end
  from = '(' .. head
end
local time = redis.call('TIME')
local due = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[7])
redis.call('HSET', KEYS[3], id, ARGV[6])
redis.call('ZADD', KEYS[4], string.format('%d', due), id)
redis.call('XCLAIM', stream, ARGV[1], ARGV[5], 0, id, 'JUSTID')
return 0
