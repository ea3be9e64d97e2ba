-- entry(key, at): returns the entry id in a member of the index.
local function entry(key, at)
  local id = string.gsub(string.sub(at, #key + 2), '%f[%d]0+(%d)', '%1')
  return id
end
-- unfinished_groups(stream, id, retries, index, tail): returns the set of groups that have not done
-- a task, and whether there is any. `retries` is the retry stream, `index` the index of moved
-- tasks, `tail` the suffix of task ids.
local function unfinished_groups(stream, id, retries, index, tail)
  local found, any = {}, false
  -- Another program may have written any member into the index.
  if not is_id(id) or redis.call('EXISTS', stream) == 0 then return found, false end
  local there = #redis.call('XRANGE', stream, id, id) == 1
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local info = {}
    for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
    local name = info['name']
    local undone = newer(id, info['last-delivered-id']) or #redis.call('XPENDING', stream, name, id, id, 1) == 1
    if there and undone or moved_entry(index, retries, id .. tail, name) then found[name], any = true, true end
  end
  return found, any
end
