#!lua
-- Records which agent a session of a client is.
-- KEYS: sessions
-- ARGV: session (`<client>:<id>`), agent as a field, agent
-- Returns: {the other session that this agent is already, '' for none, how many fields there are}
local other = redis.call('HGET', KEYS[1], ARGV[2])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
if other and other ~= ARGV[1] then return { other, redis.call('HLEN', KEYS[1]) } end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[1])
return { '', redis.call('HLEN', KEYS[1]) }
