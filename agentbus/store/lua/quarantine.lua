#!lua
-- Adds records of quarantined consumers; existing ones stay unchanged.
-- KEYS: quarantined
-- ARGV: a new name for the hash's lifetime, then for each record: consumer, record
-- Returns: how many were added
local added = 0
for i = 2, #ARGV, 2 do
  added = added + redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1])
end
-- The field without a name shows a supervisor that this hash was lost, or is an older one.
local life, number = string.match(redis.call('HGET', KEYS[1], '') or '', '^(%S+) (%d+)$')
redis.call('HSET', KEYS[1], '', (life or ARGV[1]) .. ' ' .. string.format('%d', (number or 0) + 1))
return added
