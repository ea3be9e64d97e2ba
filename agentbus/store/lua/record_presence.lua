#!lua
-- Records an agent's presence.
-- KEYS: presence, agents, bell
-- ARGV: agent, ms to keep it, state ('' to keep the present state, initially `active`), then fields
--       and values; an empty value removes its field
-- Returns: now in ms
--@include say
--@include replace
--@include write_presence
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
write_presence(KEYS[1], KEYS[2], ARGV[1], ARGV[2], now, ARGV[3], { unpack(ARGV, 4) }, KEYS[3])
return now
