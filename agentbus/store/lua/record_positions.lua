#!lua flags=allow-oom
-- Records a group's position before its oldest unfinished task, so that the group can be recreated there.
-- KEYS: positions, then the streams
-- ARGV: group, then for each stream its field among the positions
-- Returns: number of recorded positions
local function before(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  if seq ~= '0' then
    -- Lua's numbers hold 53 bits; for a longer one, record a slightly earlier position.
    if #seq < 16 then return ms .. '-' .. string.format('%d', tonumber(seq) - 1) end
    return ms .. '-0'
  end
  if ms == '0' then return '0-0' end
  return string.format('%d', tonumber(ms) - 1) .. '-18446744073709551615'
end
local noted = 0
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[i])) do
      local info = {}
      for j = 1, #group, 2 do info[group[j]] = group[j + 1] end
      if info['name'] == ARGV[1] then
        local at = info['last-delivered-id']
        if info['pending'] > 0 then at = before(redis.call('XPENDING', KEYS[i], ARGV[1])[2]) end
        redis.call('HSET', KEYS[1], ARGV[i], at)
        noted = noted + 1
      end
    end
  end
end
return noted
