#!lua flags=no-writes
-- Reports whether a group has drained a queue.
-- Tasks that are not due yet, or that wait for others, do not count.
-- KEYS: recorded outcomes, dependents, delayed, then the streams, the one of retries last, then their retries
-- ARGV: group
-- Returns: 1, or 0 if a task is undelivered, held, waits for a retry, or gets ready now
--@include ids
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- A key of another type, stored by another program, counts as empty.
local function size(key)
  return tonumber(redis.pcall('ZCARD', key)) or 0
end
if #redis.pcall('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 1) > 0 then return 0 end
-- A dependent may never become ready, so it counts only while an outcome is still to be processed.
if redis.call('EXISTS', KEYS[1]) == 1 and size(KEYS[2]) > 0 then return 0 end
local streams = (#KEYS - 3) / 2
for i = 4, 3 + streams do
  -- A trimmed task that waits for a retry is no longer pending, but becomes dead once the retry is
  -- due.
  if size(KEYS[i + streams]) > 0 then return 0 end
  if redis.call('EXISTS', KEYS[i]) == 1 then
    local reached = nil
    for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[i])) do
      local info = {}
      for j = 1, #flat, 2 do info[flat[j]] = flat[j + 1] end
      if info['name'] == ARGV[1] then
        if info['pending'] > 0 then return 0 end
        reached = info['last-delivered-id']
      end
    end
    local last = redis.call('XREVRANGE', KEYS[i], '+', '-', 'COUNT', 1)[1]
    -- A group exists in the retry stream only if it has entries there.
    if last and i < 3 + streams and not reached then return 0 end
    if last and reached and newer(last[1], reached) then return 0 end
  end
end
return 1
