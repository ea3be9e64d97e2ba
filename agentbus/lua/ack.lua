#!lua flags=allow-oom
-- Acknowledges tasks that this consumer still holds.
-- KEYS: stream, stats
-- ARGV: group, consumer, milliseconds that the handlers took, then the ids, ascending
-- Returns: the ids that were not this consumer's any longer
local group, count = ARGV[1], #ARGV - 3
local held, mine, stale = {}, {}, {}
for _, entry in ipairs(redis.call('XPENDING', KEYS[1], group, ARGV[4], ARGV[#ARGV], count, ARGV[2])) do
  held[entry[1]] = true
end
for i = 4, #ARGV do
  if held[ARGV[i]] then mine[#mine + 1] = ARGV[i] else stale[#stale + 1] = ARGV[i] end
end
if #mine > 0 then
  for from = 1, #mine, 5000 do
    redis.call('XACK', KEYS[1], group, unpack(mine, from, math.min(from + 4999, #mine)))
  end
  redis.call('HINCRBY', KEYS[2], 'processed', #mine)
  redis.call('HINCRBY', KEYS[2], 'busy_ms', ARGV[3])
end
if #stale > 0 then redis.call('HINCRBY', KEYS[2], 'stale', #stale) end
return stale
