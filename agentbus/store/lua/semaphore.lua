#!lua flags=allow-oom
-- Takes a slot of a semaphore, extends it, or gives it up.
-- KEYS: holders, bell
-- ARGV: holder (its agent, a space and a token), how many there may be, ms to hold it ('' to give it up), 1 to keep one
-- Returns: {1, holders, the bell's last id} if it is held, or was given up; {0, ms until the first place is free, the last
--          id, the agents of the holders} if it is not
--@include stream
local call, time = redis.call, redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local holder, most, ms = ARGV[1], tonumber(ARGV[2]), ARGV[3]
call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local mine = call('ZSCORE', KEYS[1], holder)
local last = stream(KEYS[2])['last-generated-id']
if ms == '' then
  if mine then
    call('ZREM', KEYS[1], holder)
    last = call('XADD', KEYS[2], 'MAXLEN', 1, '*', 'free', '1')
    call('EXPIRE', KEYS[2], 86400)
  end
  return { mine and 1 or 0, 0, last }
end
local number = call('ZCARD', KEYS[1])
if mine or (ARGV[4] ~= '1' and number < most) then
  call('ZADD', KEYS[1], now + tonumber(ms), holder)
  local longest = call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  call('PEXPIRE', KEYS[1], math.max(1, tonumber(longest[2]) - now))
  return { 1, call('ZCARD', KEYS[1]), last }
end
local first = call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local reply = { 0, first[2] and math.ceil(tonumber(first[2]) - now) or 0, last }
for _, one in ipairs(call('ZRANGE', KEYS[1], 0, 9)) do reply[#reply + 1] = string.match(one, '^(.*) ') or one end
return reply
