#!lua flags=allow-oom
-- Sends a heartbeat for a consumer's tasks, so that they are not reclaimed.
-- KEYS: stream
-- ARGV: group, consumer, then the ids, ascending
-- Returns: the ids that this consumer no longer holds
--@include held
local ours, mine, gone = held(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[#ARGV]), {}, {}
for i = 3, #ARGV do
  if not ours[ARGV[i]] then
    gone[#gone + 1] = ARGV[i]
  elseif #redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i]) == 1 then
    -- Do not claim a trimmed entry: that would silently remove it from the pending entries.
    mine[#mine + 1] = ARGV[i]
  end
end
for from = 1, #mine, 5000 do
  local words = { unpack(mine, from, math.min(from + 4999, #mine)) }
  words[#words + 1] = 'JUSTID'
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(words))
end
return gone
