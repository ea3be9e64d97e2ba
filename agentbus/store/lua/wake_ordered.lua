#!lua flags=allow-oom
-- Ends the turns of tasks with ordering keys: the next one of each key, if it was put aside, is due at once.
-- KEYS: stream, order, retries, bell, the stream of retries, its retries, where moved tasks are
-- ARGV: group, the part of a task's id after the entry's id, then for each task, ascending, its entry's id and its ordering
--       key; the group has done all of them, unless the server has lost that
-- Returns: 1 if another one was waiting
--@include ids
--@include order
--@include moved_entry
--@include replace
--@include turns
local call, group = redis.call, ARGV[1]
-- Keep the member of a task that another group has not done.
local alone = call('EXISTS', KEYS[1]) == 0
if not alone then
  local groups = call('XINFO', 'GROUPS', KEYS[1])
  alone = #groups == 1 and groups[1][2] == group
end
local last, keys, gone = {}, {}, {}
for i = 3, #ARGV, 2 do
  local id, key = ARGV[i], ARGV[i + 1]
  local held = redis.pcall('XPENDING', KEYS[1], group, id, id, 1)[1] or moved_entry(KEYS[7], KEYS[5], id .. ARGV[2], group)
  if not held then
    local at = order_member(key, id)
    if not last[key] then keys[#keys + 1] = key end
    last[key] = at
    if alone or not select(2, unfinished_groups(KEYS[1], id, KEYS[5], KEYS[7], ARGV[2])) then gone[#gone + 1] = at end
  end
end
if #gone > 0 then redis.pcall('ZREM', KEYS[2], unpack(gone)) end
local waiting = 0
for _, key in ipairs(keys) do
  local next = redis.pcall('ZRANGEBYLEX', KEYS[2], '(' .. last[key], '(' .. key .. '\n~', 'LIMIT', 0, 1)[1]
  if next then
    local id, retries = entry(key, next), KEYS[3]
    local due = redis.pcall('ZSCORE', retries, id)
    if type(due) ~= 'string' then
      id, retries = moved_entry(KEYS[7], KEYS[5], id .. ARGV[2], group), KEYS[6]
      due = id and redis.pcall('ZSCORE', retries, id)
    end
    if type(due) == 'string' then
      waiting = 1
      -- Lower scores belong to tasks that a dead worker may have begun, which are due anyway. A
      -- task held by hand is due when its visibility ends.
      local stream = retries == KEYS[6] and KEYS[5] or KEYS[1]
      local holder = redis.pcall('XPENDING', stream, group, id, id, 1)[1]
      local by_hand = holder and string.sub(holder[2], 1, 5) == 'hand:'
      if tonumber(due) > 1000 and not by_hand then call('ZADD', retries, 1000, id) end
    end
  end
end
if waiting == 1 then replace(KEYS[4], 'XADD', 'MAXLEN', 1, '*', 'due', '0') end
return waiting
