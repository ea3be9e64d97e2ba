-- moved_entry(index, retries, place, group): returns the entry in the retry stream of a task that
-- was moved there and that the group has not done; otherwise nil. `place` is the part of the task's
-- id that names its former entry.
local function moved_entry(index, retries, place, group)
  local id = redis.pcall('HGET', index, place .. '\n' .. group)
  if type(id) ~= 'string' then return nil end
  local held = redis.pcall('XPENDING', retries, group, id, id, 1)
  if held.err or #held == 0 then return nil end
  return id
end
