#!lua flags=allow-oom
-- Deletes the dedup records of tasks that were deleted with their queue.
-- A task that exists keeps its record: it was published since, or the server has lost the deletion.
-- KEYS: the streams, then the records
-- ARGV: when the queue was deleted in ms, number of its last delayed task, number of streams, their priorities
-- Returns: number of deleted records
--@include ids
local streams, gone = tonumber(ARGV[3]), 0
local places = {}
for i = 1, streams do places[ARGV[3 + i]] = KEYS[i] end
local function since(task)
  local entry, priority = string.match(task, '^([^@]*)@[^:]*:?(.*)$')
  if not entry then return false end
  local number = string.match(entry, '^d(%d+)$')
  if number then return longer(number, ARGV[2]) end
  local ms = string.match(entry, '^(%d+)%-%d+$')
  if not ms or longer(ms, ARGV[1]) then return ms ~= nil end
  local stream = places[priority == '' and 'normal' or priority]
  return stream ~= nil and #redis.call('XRANGE', stream, entry, entry) == 1
end
for i = streams + 1, #KEYS do
  local task = redis.call('GET', KEYS[i])
  if task and not since(task) then gone = gone + redis.call('DEL', KEYS[i]) end
end
return gone
