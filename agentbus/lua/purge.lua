#!lua flags=allow-oom
-- Removes dead letters: those named, or all.
-- KEYS: dead letters, replayed
-- ARGV: the letters' ids, or nothing for all of them
-- Returns: how many were removed
if not ARGV[1] then
  local all = redis.call('XLEN', KEYS[1])
  redis.call('DEL', KEYS[1], KEYS[2])
  return all
end
local kept, gone, doomed = {}, 0, {}
for _, id in ipairs(ARGV) do doomed[id] = true end
-- A stream gives memory back only from its oldest end, so the letters that stay are written again.
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
  if doomed[entry[1]] then gone = gone + 1 else kept[#kept + 1] = entry end
end
if gone > 0 then
  redis.call('DEL', KEYS[1])
  for _, entry in ipairs(kept) do redis.call('XADD', KEYS[1], entry[1], unpack(entry[2])) end
  redis.call('HDEL', KEYS[2], unpack(ARGV))
end
return gone
