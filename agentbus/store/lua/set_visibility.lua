#!lua flags=allow-oom
-- Holds a task for an agent, without heartbeats, until its visibility ends; or extends the visibility.
-- KEYS: stream, attempts, retries, the last token, the tasks held by hand, cancelled
-- ARGV: group, consumer (to extend the visibility, with a newline and the token after it), id, visibility in ms, the
--       task's place among the cancelled, the task's id, its agent, queue and priority
-- Returns: {token, the server's time in ms at which the visibility ends}, {} if this consumer does not hold it, {''} if
--          it was cancelled
--@include ids
--@include owner
--@include fence
--@include replace
local call, id = redis.call, ARGV[3]
if not owns(KEYS[1], ARGV[1], ARGV[2], id, KEYS[2]) then return {} end
if type(redis.pcall('HGET', KEYS[6], ARGV[5])) == 'string' then return { '' } end
local consumer, token = string.match(ARGV[2], '^(.*)\n(%d+)$')
if not token then
  consumer = ARGV[2]
  local record = replace(KEYS[2], 'HGET', id) or ''
  -- A request resent after a lost reply returns the same token: another attempt would have replaced
  -- the token.
  token = token_of(record)
  if not token then
    stored_token(KEYS[4])
    token = fence(KEYS[4], '')
    call('HSET', KEYS[2], id, string.format('%s hand:%s', string.match(record, '^%d+') or '1', token))
  end
end
local time = call('TIME')
local due = string.format('%d', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[4]))
-- When the visibility ends, any worker may take the task, like one whose next attempt is due.
replace(KEYS[3], 'ZADD', due, id)
call('XCLAIM', KEYS[1], ARGV[1], consumer, 0, id, 'JUSTID')
local field = ARGV[6] .. '\n' .. ARGV[1] .. '\n' .. token
replace(KEYS[5], 'HSET', field, table.concat({ ARGV[7], ARGV[8], ARGV[9], id, due }, '\n'))
return { token, due }
