#!lua
-- Appends tasks to a queue, all or none of them.
-- KEYS: stream, queues, stats, once slot, seen (only with a dedup key)
-- ARGV: queue, bound, 'refuse' or 'trim', dedup window in seconds, task id's suffix, token, how many tasks, then
--       for each how many words follow, and its fields and values
-- Returns: {'accepted', first id, number of tasks}: the ids follow each other; {'seen', task id}, or
--          {'full', length}
--@include once
--@include ids
--@include needed
local before = already(KEYS[4], ARGV[6])
if before then return before end
if KEYS[5] then
  local first = redis.call('GET', KEYS[5])
  if first then return { 'seen', first } end
end
local stream, bound, count = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[7])
if not room(stream, bound, count) then
  if ARGV[3] ~= 'trim' then
    redis.call('HINCRBY', KEYS[3], 'refused', count)
    return { 'full', redis.call('XLEN', stream) }
  end
  redis.call('HINCRBY', KEYS[3], 'dropped',
    redis.call('XTRIM', stream, 'MAXLEN', '=', math.max(0, bound - count)))
end
local call, at, first, ms = redis.call, 8, nil, '*'
for _ = 1, count do
  local words = tonumber(ARGV[at])
  local id
  if words == 2 then
    id = call('XADD', stream, ms, ARGV[at + 1], ARGV[at + 2])
  else
    id = call('XADD', stream, ms, unpack(ARGV, at + 1, at + words))
  end
  if not first then
    first = id
    ms = string.match(id, '^%d+') .. '-*'
  end
  at = at + words + 1
end
call('HINCRBY', KEYS[3], 'published', count)
call('ZADD', KEYS[2], 'NX', string.match(first, '^%d+'), ARGV[1])
if KEYS[5] then call('SET', KEYS[5], first .. ARGV[5], 'EX', ARGV[4]) end
return keep(KEYS[4], ARGV[6], { 'accepted', first, tostring(count) })
