#!lua
-- Keeps tasks until they are due, all or none.
-- KEYS: delayed, bodies, queues, stats, once slot, stream (for the bound), bell, metrics, readers,
--       after, the stream of retries, the counter of ids, seen (only with a dedup key, and one task)
-- ARGV: 1 not to count the refusal if tasks stay behind an unfinished one, queue, bound, dedup window in seconds, task id's
--       suffix, token, then for each task its delay in ms ('' if due at a time), when it is due in ms ('' if after a
--       delay), its priority, its ordering key or '', and its fields and values, as JSON
-- Returns: {'accepted', the first task's id, whose number those of the others follow}, {'seen', task id}, or {'full', number,
--          group, id} as publish does
--@include json
--@include once
--@include ids
--@include lowest_of_readers
--@include undelivered
--@include lowest_needed
--@include count_refused
--@include replace
--@include new_ids
local before = already(KEYS[5], ARGV[6])
if before then return before end
local call, count = redis.call, (#ARGV - 6) / 3
if KEYS[13] then
  local first = call('GET', KEYS[13])
  if first then return { 'seen', first } end
end
local delayed = call('ZCARD', KEYS[1]) + call('ZCARD', KEYS[10])
local fits, undone, blocking, oldest = room(KEYS[6], tonumber(ARGV[3]) - delayed, count, KEYS[9], KEYS[11])
if not fits then
  -- If one of several tasks does not fit, the caller sends each separately, and only that refusal
  -- counts.
  if count == 1 and (ARGV[1] == '0' or oldest == '') then count_refused(KEYS[8], KEYS[4], 100000, ARGV[2], 1) end
  return { 'full', delayed + undone, blocking, oldest }
end
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local fresh = new_ids(KEYS[12], ARGV[5], count, { KEYS[2] })
local dues, soonest = {}, nil
for n = 1, count do
  local at = 4 + 3 * n
  local id = fresh[n]
  local due = ARGV[at + 1] ~= '' and ARGV[at + 1] or string.format('%d', now + tonumber(ARGV[at]))
  call('HSETNX', KEYS[2], id, ARGV[at + 2])
  dues[2 * n - 1], dues[2 * n] = due, id
  if not soonest or tonumber(due) < tonumber(soonest) then soonest = due end
end
call('ZADD', KEYS[1], unpack(dues))
call('ZADD', KEYS[3], 'NX', time[1], ARGV[2])
redis.pcall('HINCRBY', KEYS[4], 'scheduled', count)
replace(KEYS[7], 'XADD', 'MAXLEN', 1, '*', 'due', soonest)
if KEYS[13] then call('SET', KEYS[13], fresh[1], 'EX', ARGV[4]) end
return keep(KEYS[5], ARGV[6], { 'accepted', fresh[1] })
