#!lua flags=allow-oom
-- Takes consumers out of quarantine.
-- KEYS: quarantined
-- ARGV: consumers; none means all
-- Returns: those that were quarantined
local asked = ARGV
if not ARGV[1] then asked = redis.pcall('HKEYS', KEYS[1]) end
local found = {}
for _, name in ipairs(asked) do
  if name ~= '' and redis.pcall('HDEL', KEYS[1], name) == 1 then found[#found + 1] = name end
end
local kept = redis.pcall('HGET', KEYS[1], '')
local life, number = string.match(type(kept) == 'string' and kept or '', '^(%S+) (%d+)$')
if life and #found > 0 then
  redis.call('HSET', KEYS[1], '', life .. ' ' .. string.format('%d', number + 1))
end
return found
