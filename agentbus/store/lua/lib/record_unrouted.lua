-- record_unrouted(stream, index, notes, id, verdict): records the outcome of a task that a router
-- has dead-lettered, for each group that has waiting dependents but does not exist on the task's
-- stream: the task will never reach it. Returns whether there are any.
local function record_unrouted(stream, index, notes, id, verdict)
  local from, any = id .. '\n', false
  while true do
    local reply = redis.pcall('ZRANGEBYLEX', index, '[' .. from, '(' .. id .. '\11', 'LIMIT', 0, 1)
    local group = type(reply[1]) == 'string' and string.match(string.sub(reply[1], #id + 2), '^[^\n]*')
    if not group then return any end
    if not has_group(stream, group) then any = record_outcome(index, notes, id, group, verdict) or any end
    from = id .. '\n' .. group .. '\11'
  end
end
