#!lua flags=allow-oom
-- Removes records of entries that are no longer pending in a group, or no longer in a stream.
-- KEYS: stream, the records by entry id
-- ARGV: 'hash', 'zset' or 'set', group ('' if the entry need only exist in the stream), cursor,
--       number to examine, 1 only to count, how a record names the entry: '' by its name, 'value' by its value, else by what is before this
--       part of a task's id; others are left alone
-- Returns: {next cursor ('0' at the end), number of stale records}
local scan = { hash = 'HSCAN', zset = 'ZSCAN', set = 'SSCAN' }
local remove = { hash = 'HDEL', zset = 'ZREM', set = 'SREM' }
local page = redis.pcall(scan[ARGV[1]], KEYS[2], ARGV[3], 'COUNT', ARGV[4])
if page['err'] then return { '0', 0 } end
local gone = 0
for i = 1, #page[2], ARGV[1] == 'set' and 1 or 2 do
  local name, id, found = page[2][i], page[2][i], nil
  if ARGV[6] == 'value' then
    id = page[2][i + 1]
  elseif ARGV[6] ~= '' then
    local entry, place = string.match(name, '^([^@]*)(@[^\n]*)')
    id = place == ARGV[6] and entry
  end
  if id and ARGV[2] == '' then
    found = redis.pcall('XRANGE', KEYS[1], id, id)
  elseif id then
    found = redis.pcall('XPENDING', KEYS[1], ARGV[2], id, id, 1)
  end
  if found and not found['err'] and #found == 0 then
    if ARGV[5] ~= '1' then redis.call(remove[ARGV[1]], KEYS[2], name) end
    gone = gone + 1
  end
end
return { page[1], gone }
