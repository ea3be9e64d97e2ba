#!lua
-- Publishes the task of a schedule's tick, unless another scheduler has, and sets the next due time.
-- KEYS: schedules, the schedule, then those of the script publish
-- ARGV: schedule's name, its stamp, the time for which its tick was decided, in ms, that at which this was
--       decided, the tick's time, the next one ('' if there is none), ms until a refused tick is tried again, then
--       those of the script publish, for one task, or for none: a tick that is left out
-- Returns: {'tasks', its id}, {'tasks'} for one left out, {'changed'} if it is not due as decided any more, or
--          {'full', …} as the script publish does; the tick is then due as before
--@include json
--@include once
--@include ids
--@include lowest_of_readers
--@include undelivered
--@include lowest_needed
--@include order
--@include count_refused
--@include publish
local before = already(KEYS[6], ARGV[14])
if before then return before end
local call, time = redis.call, redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local kept = call('HMGET', KEYS[2], 'stamp', 'due')
if (kept[1] or '') ~= ARGV[2] or kept[2] ~= ARGV[3] then return { 'changed' } end
-- The decision is old, because the scheduler was frozen: later ticks may be due, which replace this
-- one.
if math.abs(now - tonumber(ARGV[4])) > 10000 then return { 'changed' } end
local reply = { 'tasks' }
if ARGV[15] ~= '0' then
  reply = publish(2, 7)
  if reply[1] == 'full' then
    if ARGV[8] == '1' and reply[4] ~= '' then return reply end
    call('HINCRBY', KEYS[2], 'refused', 1)
    call('HSETNX', KEYS[2], 'refused_since', string.format('%d', now))
    call('ZADD', KEYS[1], 'XX', string.format('%d', now + tonumber(ARGV[7])), ARGV[1])
    return reply
  end
  -- An id with a queue belongs to an earlier task with the schedule's dedup key: nothing was
  -- published.
  if not string.find(reply[2], '@', 1, true) then
    reply[2] = reply[2] .. ARGV[13]
    call('HINCRBY', KEYS[2], 'published', 1)
    call('HSET', KEYS[2], 'last_due', ARGV[5], 'last_task', reply[2])
  end
end
call('HDEL', KEYS[2], 'refused', 'refused_since')
if ARGV[6] == '' then
  call('HDEL', KEYS[2], 'due')
  call('ZADD', KEYS[1], '+inf', ARGV[1])
else
  call('HSET', KEYS[2], 'due', ARGV[6])
  call('ZADD', KEYS[1], ARGV[6], ARGV[1])
end
return keep(KEYS[6], ARGV[14], reply)
