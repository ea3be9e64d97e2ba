#!lua flags=allow-oom
-- Records a session that uses an agent's name, and forgets names of sessions that have long been silent.
-- KEYS: sessions, agents, heard, cursor
-- ARGV: session (agent, host and number), shortest time between two records in ms, time to keep in ms,
--       1 if the agent's name is that of the session, agent
-- Returns: 1 if the record was written, 0 if the last one is recent, nil if the project has not seen the agent
-- A key of another type, which another program stored, has seen nobody.
for i = 1, 2 do
  if type(redis.pcall('ZCARD', KEYS[i])) == 'table' then return false end
end
if not redis.call('ZSCORE', KEYS[2], ARGV[5]) then return false end
local time = redis.call('TIME')
local at = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local last = redis.call('ZSCORE', KEYS[1], ARGV[1])
if last and at - tonumber(last) < tonumber(ARGV[2]) and tonumber(last) <= at then return 0 end
redis.call('ZADD', KEYS[1], at, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', at - tonumber(ARGV[3]))
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -10001)
if ARGV[4] == '1' then redis.call('PEXPIRE', KEYS[4], ARGV[3]) end
local silent = (at - tonumber(ARGV[3])) / 1000
for _, agent in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', silent, 'LIMIT', 0, 100)) do
  if string.find(agent, '@[^@]*~%d+$') then
    redis.call('ZREM', KEYS[2], agent)
    redis.pcall('HDEL', KEYS[3], (string.gsub(string.gsub(agent, '%%', '%%25'), ':', '%%3A')))
  end
end
return 1
