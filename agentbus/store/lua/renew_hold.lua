#!lua flags=allow-oom
-- Sets a new TTL for a hold, if it still has this token.
-- KEYS: flag, fence, channel, agents, topics
-- ARGV: agent, fencing token, TTL in ms, bound, flag's name
-- Returns: {'renewed'} or {'lost', value of the flag now or ''}
--@include say
--@include hold
--@include ids
--@include fence
--@include held_token
local value = redis.call('GET', KEYS[1])
if value and holder(value) == ARGV[1] and held_token(KEYS[2], value) == ARGV[2] then
  if redis.call('PTTL', KEYS[1]) == -1 then
    say(KEYS[3], KEYS[4], KEYS[5], ARGV[4], ARGV[1], 'renewed ' .. ARGV[5], 'coordination',
      'event', 'renewed', 'flag', ARGV[5])
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  redis.call('PEXPIRE', KEYS[2], token_ttl(ARGV[3]))
  return { 'renewed' }
end
return { 'lost', value or '' }
