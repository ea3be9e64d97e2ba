#!lua flags=allow-oom
-- Records a worker's heartbeat, and returns the orders for it.
-- KEYS: beats, the worker's record, paused
-- ARGV: worker, number of this beat, state, seconds for which a silent worker stays registered, how many fields name its
--       orders, those fields, then fields and values of its record
-- Returns: {order in force as JSON or '', 1 if it must stop, at its first beat the workers that were silent that long,
--          the places of its cancelled tasks, a line each}
--@include replace
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local number, fields = tonumber(ARGV[2]), 5 + tonumber(ARGV[5])
local order = ''
for _, found in ipairs(replace(KEYS[3], 'HMGET', unpack(ARGV, 6, fields))) do
  if found and order == '' then order = found end
end
local had = replace(KEYS[2], 'HMGET', 'number', 'state', 'stop', 'cancelled')
local last = tonumber(had[1] or 0) or 0
-- A late beat must not overwrite a newer one.
if number >= last then
  local state = ARGV[3]
  -- A worker that gets no order here resumes: it must not seem to comply already with the next order. The same
  -- beat, resent, may have got this answer before.
  if state == 'paused' and (order == '' or (number == last and had[2] ~= 'paused')) then state = 'working' end
  redis.call('HSET', KEYS[2], 'number', ARGV[2], 'state', state, 'seen', now, unpack(ARGV, fields + 1))
  redis.call('HSETNX', KEYS[2], 'started', now)
  redis.call('EXPIRE', KEYS[2], ARGV[4])
  replace(KEYS[1], 'ZADD', now, ARGV[1])
end
local silent = {}
if number == 1 then
  silent = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[4]) * 1000, 'LIMIT', 0, 100)
end
return { order, had[3] and 1 or 0, silent, had[4] or '' }
