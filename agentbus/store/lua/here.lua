#!lua
-- Records an agent's presence.
-- KEYS: presence, agents
-- ARGV: agent, ms to keep it, state ('' to keep the present one, at first `active`), then fields and values, of which
--       '' removes a field
-- Returns: now in ms
--@include say
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local stamp = string.format('%d', now)
local before = redis.call('HGET', KEYS[1], 'state')
local state = ARGV[3]
if state == '' then state = before or 'active' end
if state ~= before then redis.call('HSET', KEYS[1], 'since', stamp) end
redis.call('HSET', KEYS[1], 'state', state, 'seen', stamp)
for i = 4, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
touch(KEYS[2], ARGV[1], string.format('%.3f', now / 1000))
return now
