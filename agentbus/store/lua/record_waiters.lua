#!lua flags=allow-oom
-- Records that an agent waits for flags, or that it no longer does; the record expires if it is not renewed.
-- Deletes an outcome beside a hold: it is of an earlier one, because another program announced the flag.
-- KEYS: waiting, then for each flag: flag, done, failed
-- ARGV: ms to keep the record (0: delete it), then for each flag: flag, state, agent, unix ms ('': now), unique id; a line each
-- Returns: the time in unix ms
local time = redis.call('TIME')
local at = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
for i = 2, #ARGV do
  if ARGV[1] == '0' then
    redis.call('ZREM', KEYS[1], ARGV[i])
  else
    local record = string.gsub(ARGV[i], '\n\n', string.format('\n%d\n', at), 1)
    redis.call('ZADD', KEYS[1], at + tonumber(ARGV[1]), record)
  end
end
for i = 2, #KEYS, 3 do
  if redis.call('EXISTS', KEYS[i]) == 1 then redis.call('DEL', KEYS[i + 1], KEYS[i + 2]) end
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', at)
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -10001)
return at
