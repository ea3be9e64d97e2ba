#!lua flags=allow-oom
-- Lets a task with an ordering key start if all before it with this key are done; else puts it aside.
-- KEYS: stream, order, attempts, retries, the stream of its priority, the stream of retries, where moved tasks are
-- ARGV: group, consumer, id, ordering key, the consumer that holds tasks put aside, attempts so far,
--       milliseconds after which a task put aside is tried again, its entry in the stream of its priority, the part of a
--       task's id after the entry's id there
-- Returns: 1 if it may start, 0 if it was put aside, -1 if this consumer no longer holds it
--@include ids
--@include owner
--@include order
--@include moved
--@include turns
local stream, id, key = KEYS[1], ARGV[3], ARGV[4]
if not owns(stream, ARGV[1], ARGV[2], id) then return -1 end
local from, to = '[' .. key .. '\n', '(' .. place(key, ARGV[8])
while true do
  local head = redis.call('ZRANGEBYLEX', KEYS[2], from, to, 'LIMIT', 0, 1)[1]
  if not head then return 1 end
  local groups, wanted = open(KEYS[5], entry(key, head), KEYS[6], KEYS[7], ARGV[9])
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
