#!lua flags=allow-oom
-- Advances an agent's cursors; they never move back.
-- KEYS: heard, agents, cursors
-- ARGV: agent, id, ordinal of that id ('' if unknown), ms to keep the cursors ('': without end), then for each cursor
--       its field in `heard`
-- Returns: number of cursors that moved
--@include ids
--@include replace
local moved = 0
for i = 3, #KEYS do
  local at = redis.pcall('GET', KEYS[i])
  if type(at) ~= 'string' or newer(ARGV[2], at) then
    redis.call('SET', KEYS[i], ARGV[2])
    if ARGV[4] ~= '' then redis.call('PEXPIRE', KEYS[i], ARGV[4]) end
    if ARGV[3] == '' then
      replace(KEYS[1], 'HDEL', ARGV[i + 2])
    else
      replace(KEYS[1], 'HSET', ARGV[i + 2], ARGV[2] .. ' ' .. ARGV[3])
    end
    moved = moved + 1
  end
end
local time = redis.call('TIME')
local at = time[1] .. '.' .. string.sub('000' .. math.floor(tonumber(time[2]) / 1000), -3)
if replace(KEYS[2], 'ZADD', at, ARGV[1]) == 1 then
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -10001)
end
return moved
