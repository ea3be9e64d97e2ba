#!lua flags=allow-oom
-- Removes entries after their retention.
-- Every group must have acknowledged them, and every other reader passed them.
-- KEYS: stream, readers
-- ARGV: how long they are kept in ms, the most to remove, 1 only to count, id to count from
-- Returns: {number of entries, id to continue from ('' at the end)}
--@include ids
--@include lowest_of_readers
--@include undelivered
--@include lowest_needed
--@include page
if redis.call('EXISTS', KEYS[1]) == 0 then return { 0, '' } end
local lowest = lowest_needed(KEYS[1], KEYS[2])
if not lowest then return { 0, '' } end
if tonumber(ARGV[1]) > 0 then
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local horizon = string.format('%d-0', math.max(0, now - tonumber(ARGV[1])))
  if newer(lowest, horizon) then lowest = horizon end
end
if ARGV[3] == '1' then
  local ids, onwards = page(KEYS[1], ARGV[4], '(' .. lowest, tonumber(ARGV[2]))
  return { #ids, onwards }
end
-- Trim whole nodes first, up to the limit; then the few entries left in the last node.
local gone = redis.call('XTRIM', KEYS[1], 'MINID', '~', lowest, 'LIMIT', ARGV[2])
if gone > 0 then return { gone, lowest } end
return { redis.call('XTRIM', KEYS[1], 'MINID', '=', lowest), '' }
