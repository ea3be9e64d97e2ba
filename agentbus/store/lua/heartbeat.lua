#!lua flags=allow-oom
-- Shows that a consumer still works on its tasks, so that nobody takes them over.
-- KEYS: stream
-- ARGV: group, consumer, then the ids, ascending
-- Returns: the ids that were not this consumer's any longer
--@include held
local ours, mine, gone = held(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[#ARGV]), {}, {}
for i = 3, #ARGV do
  if not ours[ARGV[i]] then
    gone[#gone + 1] = ARGV[i]
  elseif #redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i]) == 1 then
    -- Claiming one that was trimmed away would drop it from what is pending, and nobody would know.
    mine[#mine + 1] = ARGV[i]
  end
end
for from = 1, #mine, 5000 do
  local words = { unpack(mine, from, math.min(from + 4999, #mine)) }
  words[#words + 1] = 'JUSTID'
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(words))
end
return gone
