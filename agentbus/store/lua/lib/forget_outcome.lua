-- forget_outcome(notes, index, field, prefix): deletes a recorded outcome once the task has no dependents. The members of
-- the index are `task\ngroup`, and `task\ngroup\n` with two digits and the dependent for each.
local function forget_outcome(notes, index, field, prefix)
  local page = redis.call('ZRANGEBYLEX', index, '[' .. prefix, '(' .. string.sub(prefix, 1, -2) .. '\11', 'LIMIT', 0, 20)
  for _, member in ipairs(page) do
    if string.find(member, '\n.*\n') then return end
    redis.call('ZREM', index, member)
  end
  redis.call('ZREM', index, field)
  redis.call('HDEL', notes, field)
end
