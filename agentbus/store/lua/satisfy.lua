#!lua flags=allow-oom
-- Ends a hold: as satisfied, which leaves a completion, or as released, which does not.
-- KEYS: flag, done, fence, channel, agents, topics, once slot
-- ARGV: agent, 'satisfied' or 'released', 1 to end another's hold, required fencing token ('' for any),
--       note, seconds to keep the completion, bound, token, flag's name, message
-- Returns: {'ended', agent @ time, fencing token, entry id}, {'held', value, fencing token, remaining TTL in ms},
--          or {'absent'} if there is no such hold to release
--@include once
--@include say
--@include hold
local before = already(KEYS[7], ARGV[8])
if before then return before end
local value = redis.call('GET', KEYS[1])
local fence = redis.call('GET', KEYS[3]) or '0'
if value and holder(value) ~= ARGV[1] and ARGV[3] ~= '1' then
  return { 'held', value, fence, tostring(redis.call('PTTL', KEYS[1])) }
end
if ARGV[4] ~= '' and (not value or fence ~= ARGV[4]) then return { 'absent' } end
if not value then
  if ARGV[2] == 'released' then return { 'absent' } end
  fence = tostring(redis.call('INCR', KEYS[3]))
end
local id
if ARGV[5] == '' then
  id = say(KEYS[4], KEYS[5], KEYS[6], ARGV[7], ARGV[1], ARGV[10], 'coordination',
    'event', ARGV[2], 'flag', ARGV[9], 'token', fence)
else
  id = say(KEYS[4], KEYS[5], KEYS[6], ARGV[7], ARGV[1], ARGV[10], 'coordination',
    'event', ARGV[2], 'flag', ARGV[9], 'token', fence, 'note', ARGV[5])
end
redis.call('DEL', KEYS[1])
local mine = ARGV[1] .. ' @ ' .. now()
if ARGV[2] == 'satisfied' then
  redis.call('SET', KEYS[2], mine .. '\n' .. id .. '\n' .. fence .. '\n' .. ARGV[5], 'EX', ARGV[6])
end
return keep(KEYS[7], ARGV[8], { 'ended', mine, fence, id })
