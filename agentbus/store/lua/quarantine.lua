#!lua
-- Adds records of quarantined consumers, keeping existing ones, and counts each new one in the metrics.
-- KEYS: quarantined, metrics
-- ARGV: a new name for the hash's lifetime, the bound of the metrics, then for each record: consumer, stream,
--       reason, record
-- Returns: number of added records
--@include replace
local added = 0
for i = 3, #ARGV, 4 do
  if replace(KEYS[1], 'HSETNX', ARGV[i], ARGV[i + 3]) == 1 then
    added = added + 1
    redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', 'kind', 'quarantine', 'version', '1',
      'stream', ARGV[i + 1], 'role', ARGV[i], 'reason', ARGV[i + 2])
  end
end
-- The field with an empty name tells a supervisor whether this hash was lost, or is an older one.
local life, number = string.match(redis.call('HGET', KEYS[1], '') or '', '^(%S+) (%d+)$')
redis.call('HSET', KEYS[1], '', (life or ARGV[1]) .. ' ' .. string.format('%d', (number or 0) + 1))
return added
