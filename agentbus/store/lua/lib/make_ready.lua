-- make_ready(id, task, keys, now): moves a task without unfinished dependencies into its stream, or
-- delays it until it is due. `task` is {priority, ordering key or '', due time in ms or '', name of
-- its dead letters, seconds for which its outcome is recorded, fields and values …}; `keys` are its
-- stream, order, delayed, bodies of delayed tasks, and bell. If something is stored
-- under its id already, that stays, and the task is ready at once.
local function make_ready(id, task, keys, now)
  if task[3] ~= '' and tonumber(task[3]) > now
    and redis.call('HSETNX', keys[4], id, cjson.encode({ task[1], task[2], unpack(task, 6) })) == 1 then
    redis.call('ZADD', keys[3], task[3], id)
    redis.pcall('XADD', keys[5], 'MAXLEN', 1, '*', 'due', task[3])
    return
  end
  local entry = redis.call('XADD', keys[1], '*', 'id', id, unpack(task, 6))
  if task[2] ~= '' then redis.pcall('ZADD', keys[2], 0, order_member(task[2], entry)) end
end
