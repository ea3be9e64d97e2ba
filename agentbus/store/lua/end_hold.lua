#!lua flags=allow-oom
-- Ends a hold: satisfied (leaves a completion), failed (leaves a failure), or released.
-- KEYS: flag, done, failed, fence, channel, agents, topics, once slot
-- ARGV: agent, 'satisfied', 'failed' or 'released', 1 to end another's hold, required fencing token ('' for any),
--       note, seconds to keep the completion or failure, bound, token, flag's name, message, the prefix of the
--       agent's peers' names, before a number ('' if none)
-- Returns: {'ended', agent @ time, fencing token, entry id}, {'held', value, fencing token, remaining TTL in ms},
--          or {'absent'} if there is no such hold to release
--@include json
--@include once
--@include say
--@include hold
--@include ids
--@include fence
--@include held_token
local before = already(KEYS[8], ARGV[8])
if before then return before end
local value = redis.call('GET', KEYS[1])
local token = held_token(KEYS[4], value) or '0'
-- An outcome beside a hold is of an earlier one: another program announced the flag.
if value then redis.call('DEL', KEYS[2], KEYS[3]) end
-- An unnamed session may end holds of its peers, whose sessions may be over.
local function ends(held_by)
  return held_by == ARGV[1] or (ARGV[11] ~= '' and string.sub(held_by, 1, #ARGV[11]) == ARGV[11]
    and string.find(string.sub(held_by, #ARGV[11] + 1), '^%d+$'))
end
if value and ARGV[3] ~= '1' and not ends(holder(value)) then
  return { 'held', value, token, tostring(redis.call('PTTL', KEYS[1])) }
end
if ARGV[4] ~= '' and (not value or token ~= ARGV[4]) then return { 'absent' } end
if not value then
  if ARGV[2] == 'released' then return { 'absent' } end
  token = fence(KEYS[4], '0')
end
local id
if ARGV[5] == '' then
  id = say(KEYS[5], KEYS[6], KEYS[7], ARGV[7], ARGV[1], ARGV[10], 'coordination',
    'event', ARGV[2], 'flag', ARGV[9], 'token', token)
else
  id = say(KEYS[5], KEYS[6], KEYS[7], ARGV[7], ARGV[1], ARGV[10], 'coordination',
    'event', ARGV[2], 'flag', ARGV[9], 'token', token, 'note', ARGV[5])
end
redis.call('PEXPIRE', KEYS[4], token_ttl('0'))
local mine = ARGV[1] .. ' @ ' .. now()
if ARGV[2] == 'released' then
  redis.call('DEL', KEYS[1])
else
  local outcome, other = KEYS[2], KEYS[3]
  if ARGV[2] == 'failed' then outcome, other = KEYS[3], KEYS[2] end
  redis.call('SET', outcome, mine .. '\n' .. id .. '\n' .. token .. '\n' .. ARGV[5], 'EX', ARGV[6])
  redis.call('DEL', KEYS[1], other)
end
return keep(KEYS[8], ARGV[8], { 'ended', mine, token, id })
