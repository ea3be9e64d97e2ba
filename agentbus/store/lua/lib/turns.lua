-- entry(key, place): the id of the task in this place.
local function entry(key, at)
  local id = string.gsub(string.sub(at, #key + 2), '%f[%d]0+(%d)', '%1')
  return id
end
-- open(stream, id): the groups that have not done a task, by name.
local function open(stream, id)
  local found, any = {}, false
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local info = {}
    for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
    if newer(id, info['last-delivered-id']) or #redis.call('XPENDING', stream, info['name'], id, id, 1) == 1 then
      found[info['name']], any = true, true
    end
  end
  return found, any and #redis.call('XRANGE', stream, id, id) == 1
end
