#!lua
-- Stores, changes or removes a schedule, unless another change came first.
-- KEYS: schedules, the schedule, their bell, once slot
-- ARGV: token, its name, the stamp that it has ('' for none), its new stamp, its record ('' to remove it), when it is due
--       in ms ('' for never, '=' as before)
-- Returns: {'done'}, or {'changed'}
--@include json
--@include once
--@include replace
local before = already(KEYS[4], ARGV[1])
if before then return before end
local call = redis.call
if (call('HGET', KEYS[2], 'stamp') or '') ~= ARGV[3] then return { 'changed' } end
if ARGV[5] == '' then
  call('DEL', KEYS[2])
  call('ZREM', KEYS[1], ARGV[2])
else
  call('HSET', KEYS[2], 'record', ARGV[5], 'stamp', ARGV[4])
  if ARGV[6] == '' then
    call('HDEL', KEYS[2], 'due', 'refused', 'refused_since')
    call('ZADD', KEYS[1], '+inf', ARGV[2])
  elseif ARGV[6] ~= '=' then
    call('HDEL', KEYS[2], 'refused', 'refused_since')
    call('HSET', KEYS[2], 'due', ARGV[6])
    call('ZADD', KEYS[1], ARGV[6], ARGV[2])
  end
end
replace(KEYS[3], 'XADD', 'MAXLEN', 1, '*', 'schedule', ARGV[2])
return keep(KEYS[4], ARGV[1], { 'done' })
