#!lua flags=no-writes
-- Lists the schedules that are due.
-- KEYS: schedules, their bell
-- ARGV: maximum number of schedules
-- Returns: {now in ms, ms until the next schedule is due ('' if none), the bell's last id, name, …}
--@include stream
local call, time = redis.call, redis.call('TIME')
local now = string.format('%d', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local reply = { now, '', stream(KEYS[2])['last-generated-id'] }
for i, name in ipairs(call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])) do reply[i + 3] = name end
local later = call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '(+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
if later then reply[2] = string.format('%d', math.ceil(math.min(tonumber(later), 1e15)) - tonumber(now)) end
return reply
