#!lua
-- Keeps a task until it is due.
-- KEYS: delayed, bodies, queues, stats, once slot, stream (for the bound), bell, metrics, readers,
--       after, seen (only with a dedup key)
-- ARGV: queue, bound, dedup window in seconds, task id's suffix, token, delay in ms ('' if due at a time), due at
--       in ms ('' if after a delay), priority, ordering key or '', then the task's fields and values
-- Returns: {'accepted', task id}, {'seen', task id}, or {'full', number, group, id} as publish does
--@include once
--@include ids
--@include least
--@include undelivered
--@include needed
--@include refused
local before = already(KEYS[5], ARGV[5])
if before then return before end
if KEYS[11] then
  local first = redis.call('GET', KEYS[11])
  if first then return { 'seen', first } end
end
local delayed = redis.call('ZCARD', KEYS[1]) + redis.call('ZCARD', KEYS[10])
local fits, undone, blocking, oldest = room(KEYS[6], tonumber(ARGV[2]) - delayed, 1, KEYS[9])
if not fits then
  refused(KEYS[8], KEYS[4], 100000, ARGV[1], 1)
  return { 'full', delayed + undone, blocking, oldest }
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local due = ARGV[7] ~= '' and ARGV[7] or string.format('%d', now + tonumber(ARGV[6]))
local id = 'd' .. redis.call('HINCRBY', KEYS[4], 'scheduled', 1) .. ARGV[4]
local task = { ARGV[8] }
for i = 9, #ARGV do task[#task + 1] = ARGV[i] end
redis.call('HSET', KEYS[2], id, cjson.encode(task))
redis.call('ZADD', KEYS[1], due, id)
redis.call('ZADD', KEYS[3], 'NX', time[1], ARGV[1])
redis.call('XADD', KEYS[7], 'MAXLEN', 1, '*', 'due', due)
if KEYS[11] then redis.call('SET', KEYS[11], id, 'EX', ARGV[3]) end
return keep(KEYS[5], ARGV[5], { 'accepted', id })
