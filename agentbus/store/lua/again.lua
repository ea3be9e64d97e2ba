#!lua flags=allow-oom
-- Takes tasks whose retry is due; trimmed ones become tombstones.
-- KEYS: stream, retries, dead letters, stats, attempts, awaited, recorded outcomes
-- ARGV: group, consumer, limit, limit for tasks without an attempt so far (0: they are like the others), the part
--       of a task's id after the entry's id, then fields and values of a tombstone
-- Returns: {entries, ms until the next one is due or '', number of lost tasks, 1 if these are without an attempt: they
--          run as if for the first time, and their records are deleted; else 0}
--@include settled
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local firsts = tonumber(ARGV[4])
local most, kind = math.max(tonumber(ARGV[3]), firsts), nil
local taken, lost = {}, 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, most)) do
  local first = firsts > 0 and redis.call('HGET', KEYS[5], id) == '0'
  if kind == nil then
    kind = first
    most = first and firsts or tonumber(ARGV[3])
  end
  -- Only one kind in one call, since the two are acknowledged in different ways.
  if kind ~= first or #taken + lost >= most then break end
  redis.call('ZREM', KEYS[2], id)
  local entry = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id)[1]
  if first or not entry then redis.call('HDEL', KEYS[5], id) end
  if entry then
    taken[#taken + 1] = entry
  elseif #redis.call('XRANGE', KEYS[1], id, id) == 1 then
    -- The group was created again, and delivers from the beginning.
    redis.call('HDEL', KEYS[5], id)
  else
    lost = lost + 1
    redis.call('XACK', KEYS[1], ARGV[1], id)
    redis.call('XADD', KEYS[3], '*', 'original_id', id, unpack(ARGV, 6))
    settled(KEYS[6], KEYS[7], id .. ARGV[5], ARGV[1], '!it was trimmed away before it was done')
  end
end
if lost > 0 then redis.call('HINCRBY', KEYS[4], 'lost', lost) end
local next = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
local left = next[2] and string.format('%d', math.ceil(tonumber(next[2]) - now)) or ''
return { taken, left, lost, kind and 1 or 0 }
