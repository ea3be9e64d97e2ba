#!lua flags=allow-oom
-- Creates missing groups at their recorded positions.
-- A new group starts at the oldest entry or, with 'tail', after the newest.
-- Records the visibility of a consumer of the group.
-- KEYS: positions, then the streams, then the visibilities of the group's consumers
-- ARGV: group, 'tail' or '', consumer, its visibility in ms ('': none is recorded), then for each stream its field
--       among the positions
-- Returns: number of created groups
--@include ids
--@include replace
local made, known, new = 0, {}, ARGV[2] == 'tail'
local missing, last = {}, {}
if ARGV[4] ~= '' then replace(KEYS[#KEYS], 'HSET', ARGV[3], ARGV[4]) end
for i = 2, #KEYS - 1 do
  local stream, there = KEYS[i], false
  last[i] = '0-0'
  if redis.call('EXISTS', stream) == 1 then
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
      for j = 1, #group, 2 do there = there or (group[j] == 'name' and group[j + 1] == ARGV[1]) end
    end
    local info = redis.call('XINFO', 'STREAM', stream)
    for j = 1, #info, 2 do
      if info[j] == 'last-generated-id' then last[i] = info[j + 1] end
    end
  end
  missing[i] = not there
  known[i] = replace(KEYS[1], 'HGET', ARGV[i + 3])
  -- A group with an entry or a recorded position in any stream is not new.
  new = new and not (there or known[i])
end
for i = 2, #KEYS - 1 do
  if missing[i] then
    local from = known[i]
    -- On a server that was set back in time, these ids belong to other entries; and another program
    -- may have written any value.
    if not from or not is_id(from) or newer(from, last[i]) then from = '0' end
    if new then
      from = last[i]
      redis.call('HSET', KEYS[1], ARGV[i + 3], from)
    end
    redis.call('XGROUP', 'CREATE', KEYS[i], ARGV[1], from, 'MKSTREAM')
    made = made + 1
  end
end
return made
