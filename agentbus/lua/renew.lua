#!lua flags=allow-oom
-- Gives a hold a new TTL, if it is still the one with this token.
-- KEYS: flag, fence
-- ARGV: agent, fencing token, TTL in ms
-- Returns: {'renewed'} or {'lost', value of the flag now or ''}
--@include hold
local value = redis.call('GET', KEYS[1])
if value and holder(value) == ARGV[1] and redis.call('GET', KEYS[2]) == ARGV[2] then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return { 'renewed' }
end
return { 'lost', value or '' }
