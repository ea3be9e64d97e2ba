#!lua
-- Takes a flag, or renews a hold on it.
-- KEYS: flag, done, failed, fence, channel, agents, topics, once slot
-- ARGV: agent, TTL in ms ('' for none), 1 to take it from its holder, bound, token, flag's name, message,
--       what to renew: 'own' (this agent's hold), 'none', or a fencing token (the hold that has it), note ('' for none)
-- Returns: {'taken' | 'renewed' | 'held', value, fencing token, remaining TTL in ms (-1: none), channel's last id},
--          or {'over', value or '', '0', '-1', ''} if the hold with that fencing token has ended
--@include json
--@include once
--@include ids
--@include fence
--@include say
--@include stream
--@include hold
--@include held_token
local before = already(KEYS[8], ARGV[5])
if before then return before end
local value = redis.call('GET', KEYS[1])
local held = held_token(KEYS[4], value)
-- An outcome beside a hold is of an earlier one: another program announced the flag.
if value then redis.call('DEL', KEYS[2], KEYS[3]) end
local function outcome(what)
  return { what, redis.call('GET', KEYS[1]), redis.call('GET', KEYS[4]) or '0',
    tostring(redis.call('PTTL', KEYS[1])), stream(KEYS[5])['last-generated-id'] }
end
local by_token = string.find(ARGV[8], '^%d+$')
local renews = value and ARGV[8] == 'own' and holder(value) == ARGV[1]
if by_token then renews = held == ARGV[8] end
if renews then
  if not held then
    -- Another program set the flag, or deleted the token.
    local left = redis.call('PTTL', KEYS[1])
    fence(KEYS[4], left < 0 and '' or string.format('%d', left))
  end
  if ARGV[2] ~= '' then
    -- Announce a TTL that is new: waiters must not mistake the expiry for another program's change.
    if redis.call('PTTL', KEYS[1]) == -1 then
      say(KEYS[5], KEYS[6], KEYS[7], ARGV[4], ARGV[1], 'renewed ' .. ARGV[6], 'coordination',
        'event', 'renewed', 'flag', ARGV[6])
    end
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    redis.call('PEXPIRE', KEYS[4], token_ttl(ARGV[2]))
  end
  return outcome('renewed')
end
if by_token then return { 'over', value or '', '0', '-1', '' } end
if value and ARGV[3] ~= '1' then return outcome('held') end
local token = fence(KEYS[4], ARGV[2])
local told = { 'event', 'announced', 'flag', ARGV[6], 'token', token }
if value then told[#told + 1], told[#told + 2] = 'forced_from', holder(value) end
if ARGV[9] ~= '' then told[#told + 1], told[#told + 2] = 'note', ARGV[9] end
local id = say(KEYS[5], KEYS[6], KEYS[7], ARGV[4], ARGV[1], ARGV[7], 'coordination', unpack(told))
local mine = ARGV[1] .. ' @ ' .. now()
if ARGV[2] == '' then
  redis.call('SET', KEYS[1], mine)
else
  redis.call('SET', KEYS[1], mine, 'PX', ARGV[2])
end
redis.call('DEL', KEYS[2], KEYS[3])
-- The table equals the result of `outcome`, without reading it back.
return keep(KEYS[8], ARGV[5], { 'taken', mine, token, ARGV[2] == '' and '-1' or ARGV[2], id })
