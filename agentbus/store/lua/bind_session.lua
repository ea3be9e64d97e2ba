#!lua
-- Records which agent a session of a client is.
-- KEYS: sessions, the agent's presence
-- ARGV: session (`<client>:<id>`), agent as a field, agent, the session's id
-- Returns: {the other session that now uses this agent's name ('' if none), number of fields, then
--          from the presence of that session its pid, its process, its host, and the ms since it was last seen}
--@include replace
local other = replace(KEYS[1], 'HGET', ARGV[2])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
if other and other ~= ARGV[1] then
  local found = redis.pcall('HMGET', KEYS[2], 'session', 'state', 'pid', 'process', 'host', 'seen')
  local silent = tonumber(redis.call('TIME')[1]) * 1000 - (tonumber(found[6] or '') or 0)
  -- A session that has ended, or was not seen for a day, gives up the name to this one.
  if found[1] and found[1] ~= ARGV[4] and found[2] ~= 'gone' then
    local fields = redis.call('HLEN', KEYS[1])
    return { other, fields, found[3] or '', found[4] or '', found[5] or '', string.format('%d', silent) }
  end
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[1])
return { '', redis.call('HLEN', KEYS[1]) }
