#!lua flags=allow-oom
-- Starts tasks whose predecessors with the same ordering key are all done, and defers the others.
-- KEYS: stream, order, attempts, retries, the stream of their priority, the retry stream, the index
--       of moved tasks
-- ARGV: group, consumer, the consumer that holds deferred tasks, milliseconds after which a
--       deferred task is retried, the suffix of task ids in the stream of their priority, 1 if this
--       consumer runs tasks one after the other, so that a task may also start if this call starts
--       its predecessors; then for each task, ascending, its entry's id, its entry's id in the
--       stream of its priority, its ordering key, the attempts so far
-- Returns: for each task 1 if it may start, 0 if it was deferred, -1 if this consumer no longer
--          holds it
--@include ids
--@include held
--@include replace
--@include keep_attempts
--@include order
--@include moved_entry
--@include turns
local call, stream, group = redis.call, KEYS[1], ARGV[1]
local mine = held(stream, group, ARGV[2], ARGV[7], ARGV[#ARGV - 3])
-- For each key, the place up to which every task is done, or starts now.
local reached, chained = {}, ARGV[6] == '1'
-- Returns whether this group has done, or starts now, all tasks of a key before a place.
local function free(key, at)
  local from = reached[key] or '[' .. key .. '\n'
  while true do
    local head = redis.pcall('ZRANGEBYLEX', KEYS[2], from, '(' .. at, 'LIMIT', 0, 1)[1]
    if not head then return true end
    local groups, wanted = unfinished_groups(KEYS[5], entry(key, head), KEYS[6], KEYS[7], ARGV[5])
    if wanted and groups[group] then return false end
    if not wanted then call('ZREM', KEYS[2], head) end
    from = '(' .. head
    reached[key] = from
  end
end
local reply, aside = {}, {}
for i = 7, #ARGV, 4 do
  local id, key, n = ARGV[i], ARGV[i + 2], (i - 3) / 4
  local at = order_member(key, ARGV[i + 1])
  if not mine[id] then
    reply[n] = -1
  elseif free(key, at) then
    reply[n] = 1
    if chained then reached[key] = '(' .. at end
  else
    reply[n], aside[#aside + 1] = 0, i
  end
end
if #aside > 0 then
  local time = call('TIME')
  local due = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + tonumber(ARGV[4])
  local ids = {}
  for n, i in ipairs(aside) do
    ids[n] = ARGV[i]
    keep_attempts(KEYS[3], ARGV[i], ARGV[i + 3])
    replace(KEYS[4], 'ZADD', string.format('%d', due), ARGV[i])
  end
  ids[#ids + 1] = 'JUSTID'
  call('XCLAIM', stream, group, ARGV[3], 0, unpack(ids))
end
return reply
