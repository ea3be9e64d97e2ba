#!lua flags=allow-oom
-- Moves delayed tasks that are due into their streams.
-- KEYS: delayed, bodies, then for each of ARGV's priorities its stream and its order
-- ARGV: limit, then the priorities
-- Returns: {number of moved tasks, ms until the next is due or '', the server's time in ms}
--@include json
--@include order
--@include decode_task
local call, time = redis.call, redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local streams, orders = {}, {}
for i = 2, #ARGV do streams[ARGV[i]], orders[ARGV[i]] = KEYS[2 * i - 1], KEYS[2 * i] end
-- If another program stored another type here, no task is delayed.
local due = redis.pcall('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
if #due > 0 then
  -- No task has this id. The command makes the server refuse a user who may add but not take tasks
  -- before anything is added.
  call('ZREM', KEYS[1], '\n')
  local bodies = redis.pcall('HMGET', KEYS[2], unpack(due))
  for i, id in ipairs(due) do
    if type(bodies[i]) == 'string' then
      local task = decode_task(bodies[i], streams, 2)
      local entry = call('XADD', streams[task[1]], '*', 'id', id, unpack(task, 3))
      if task[2] ~= '' then call('ZADD', orders[task[1]], 0, order_member(task[2], entry)) end
    end
  end
  redis.pcall('HDEL', KEYS[2], unpack(due))
  call('ZREM', KEYS[1], unpack(due))
end
local next = redis.pcall('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return { #due, next[2] and string.format('%d', math.min(tonumber(next[2]) - now, 1e15)) or '', now }
