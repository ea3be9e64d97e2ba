#!lua
-- Publishes a dead letter's task again, only once, and records the new id.
-- KEYS: dead letters, stream, queues, stats, replayed, purged, order
-- ARGV: letter's id, queue, task id's suffix, ordering key ('' for none), then the letter's own fields
-- Returns: the new task's id, or '' if there is no such letter
--@include replace
--@include order
if replace(KEYS[6], 'SISMEMBER', ARGV[1]) == 1 then return '' end
local before = replace(KEYS[5], 'HGET', ARGV[1])
if before then return before end
local entry = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not entry then return '' end
local own, task, payload = {}, {}, false
for i = 5, #ARGV do own[ARGV[i]] = true end
-- The letter's own fields come last; a task from another program may have fields of the same names.
local last = #entry[2]
while last > 0 and own[entry[2][last - 1]] do
  own[entry[2][last - 1]] = nil
  last = last - 2
end
for i = 1, last, 2 do payload = payload or entry[2][i] == 'payload' end
for i = 1, last, 2 do
  -- Omit the old id, since the new task has a new one.
  if not payload or entry[2][i] ~= 'id' then
    task[#task + 1] = entry[2][i]
    task[#task + 1] = entry[2][i + 1]
  end
end
-- This command changes nothing, but refuses a user who may not record a replay before the task is
-- published.
redis.call('HDEL', KEYS[5], ARGV[1])
local id = redis.call('XADD', KEYS[2], '*', unpack(task))
if ARGV[4] ~= '' then redis.pcall('ZADD', KEYS[7], 0, order_member(ARGV[4], id)) end
redis.call('ZADD', KEYS[3], 'NX', string.match(id, '^%d+'), ARGV[2])
redis.pcall('HINCRBY', KEYS[4], 'replayed', 1)
redis.call('HSET', KEYS[5], ARGV[1], id .. ARGV[3])
return id .. ARGV[3]
