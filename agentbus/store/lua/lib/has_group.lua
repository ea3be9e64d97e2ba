-- has_group(stream, group): returns whether a stream has a consumer group.
local function has_group(stream, group)
  local found = redis.pcall('XINFO', 'GROUPS', stream)
  for _, flat in ipairs(found.err and {} or found) do
    for i = 1, #flat, 2 do
      if flat[i] == 'name' and flat[i + 1] == group then return true end
    end
  end
  return false
end
