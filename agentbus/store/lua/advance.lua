#!lua flags=allow-oom
-- Advances an agent's cursors; they never move back.
-- KEYS: heard, agents, cursors
-- ARGV: agent, id, ordinal of that id ('' if unknown), ms to keep the cursors ('': without end), then for each cursor
--       its field in `heard`
-- Returns: how many cursors moved
--@include ids
local moved = 0
for i = 3, #KEYS do
  local at = redis.call('GET', KEYS[i])
  if not at or newer(ARGV[2], at) then
    redis.call('SET', KEYS[i], ARGV[2])
    if ARGV[4] ~= '' then redis.call('PEXPIRE', KEYS[i], ARGV[4]) end
    if ARGV[3] == '' then
      redis.call('HDEL', KEYS[1], ARGV[i + 2])
    else
      redis.call('HSET', KEYS[1], ARGV[i + 2], ARGV[2] .. ' ' .. ARGV[3])
    end
    moved = moved + 1
  end
end
local time = redis.call('TIME')
local at = time[1] .. '.' .. string.sub('000' .. math.floor(tonumber(time[2]) / 1000), -3)
if redis.call('ZADD', KEYS[2], at, ARGV[1]) == 1 then
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -10001)
end
return moved
