#!lua flags=allow-oom
-- Creates a group where it is missing, at its last recorded position, else at the oldest entry.
-- KEYS: positions, then the streams
-- ARGV: group, then for each stream its field among the positions
-- Returns: how many groups were created
--@include ids
local made = 0
for i = 2, #KEYS do
  local stream, last, there = KEYS[i], '0-0', false
  if redis.call('EXISTS', stream) == 1 then
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
      for j = 1, #group, 2 do there = there or (group[j] == 'name' and group[j + 1] == ARGV[1]) end
    end
    local info = redis.call('XINFO', 'STREAM', stream)
    for j = 1, #info, 2 do
      if info[j] == 'last-generated-id' then last = info[j + 1] end
    end
  end
  if not there then
    local known = redis.call('HGET', KEYS[1], ARGV[i])
    -- After a server went back in time, these ids are of other entries.
    if not known or newer(known, last) then known = '0' end
    redis.call('XGROUP', 'CREATE', stream, ARGV[1], known, 'MKSTREAM')
    made = made + 1
  end
end
return made
