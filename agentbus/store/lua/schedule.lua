#!lua
-- Keeps a task until it is due.
-- KEYS: delayed, bodies, queues, stats, once slot, stream (for the bound), bell, metrics, readers,
--       after, the stream of retries, seen (only with a dedup key)
-- ARGV: 1 not to count the refusal if tasks stay behind an unfinished one, queue, bound, dedup window in seconds, task id's suffix, token, delay in ms ('' if due at a time), due at
--       in ms ('' if after a delay), priority, ordering key or '', then the task's fields and values
-- Returns: {'accepted', task id}, {'seen', task id}, or {'full', number, group, id} as publish does
--@include once
--@include ids
--@include least
--@include undelivered
--@include needed
--@include refused
--@include replace
local before = already(KEYS[5], ARGV[6])
if before then return before end
if KEYS[12] then
  local first = redis.call('GET', KEYS[12])
  if first then return { 'seen', first } end
end
local delayed = redis.call('ZCARD', KEYS[1]) + redis.call('ZCARD', KEYS[10])
local fits, undone, blocking, oldest = room(KEYS[6], tonumber(ARGV[3]) - delayed, 1, KEYS[9], KEYS[11])
if not fits then
  if ARGV[1] == '0' or oldest == '' then refused(KEYS[8], KEYS[4], 100000, ARGV[2], 1) end
  return { 'full', delayed + undone, blocking, oldest }
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local due = ARGV[8] ~= '' and ARGV[8] or string.format('%d', now + tonumber(ARGV[7]))
local id = 'd' .. redis.call('HINCRBY', KEYS[4], 'scheduled', 1) .. ARGV[5]
local task = { ARGV[9] }
for i = 10, #ARGV do task[#task + 1] = ARGV[i] end
redis.call('HSET', KEYS[2], id, cjson.encode(task))
redis.call('ZADD', KEYS[1], due, id)
redis.call('ZADD', KEYS[3], 'NX', time[1], ARGV[2])
replace(KEYS[7], 'XADD', 'MAXLEN', 1, '*', 'due', due)
if KEYS[12] then redis.call('SET', KEYS[12], id, 'EX', ARGV[4]) end
return keep(KEYS[5], ARGV[6], { 'accepted', id })
