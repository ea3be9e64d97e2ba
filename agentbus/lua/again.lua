#!lua flags=allow-oom
-- Takes tasks whose retry is due; what was trimmed away meanwhile becomes a tombstone.
-- KEYS: stream, retries, dead letters, stats, attempts
-- ARGV: group, consumer, how many at most, then fields and values of a tombstone
-- Returns: {entries, when the next one is due in ms or '', how many were lost}
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local taken, lost = {}, 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[3])) do
  redis.call('ZREM', KEYS[2], id)
  local entry = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id)[1]
  if entry then
    taken[#taken + 1] = entry
  else
    lost = lost + 1
    redis.call('XACK', KEYS[1], ARGV[1], id)
    redis.call('HDEL', KEYS[5], id)
    redis.call('XADD', KEYS[3], '*', 'original_id', id, unpack(ARGV, 4))
  end
end
if lost > 0 then redis.call('HINCRBY', KEYS[4], 'lost', lost) end
local next = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
return { taken, next[2] or '', lost }
