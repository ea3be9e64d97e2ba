#!lua flags=no-writes
-- Returns entries that a consumer holds without knowing it, because a reply was lost.
-- Trimmed entries are left to be reclaimed.
-- KEYS: stream
-- ARGV: group, consumer, number to examine, then the ids that the consumer knows
-- Returns: entries
local known, found = {}, {}
for i = 4, #ARGV do known[ARGV[i]] = true end
for _, pending in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[3], ARGV[2])) do
  if not known[pending[1]] then
    found[#found + 1] = redis.call('XRANGE', KEYS[1], pending[1], pending[1])[1]
  end
end
return found
