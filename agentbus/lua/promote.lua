#!lua flags=allow-oom
-- Moves tasks that are due into their streams.
-- KEYS: delayed, bodies, streams in the order of ARGV's priorities
-- ARGV: how many at most, then the priorities
-- Returns: {how many moved, when the next one is due in ms or ''}
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local streams = {}
for i = 2, #ARGV do streams[ARGV[i]] = KEYS[i + 1] end
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, id in ipairs(due) do
  local body = redis.call('HGET', KEYS[2], id)
  if body then
    local task = cjson.decode(body)
    redis.call('XADD', streams[task[1]], '*', 'id', id, unpack(task, 2))
    redis.call('HDEL', KEYS[2], id)
  end
  redis.call('ZREM', KEYS[1], id)
end
local next = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return { #due, next[2] or '' }
