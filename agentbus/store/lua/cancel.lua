#!lua flags=allow-oom
-- Cancels a task for all groups, provided that their states are still as the caller saw them.
-- From then on, no group starts it, and workers that hold it are asked to stop.
-- KEYS: stream, cancelled, recorded outcomes, awaited, stats, order, dedup key, bell, then for each group its attempts,
--       retries, result, and the record of the worker that holds the task (else stats); then three for each notification
-- ARGV: entry's id, its name among the cancelled, the task's id, who cancels it and when, the marker to keep in place
--       of the result, seconds to keep it, its ordering key ('' for none), the consumer that holds deferred tasks, a
--       counter to raise ('' for none), number of groups, then for each its name and its state (the consumer that
--       holds the task, 'waiting', or 'done'), 1 if the group is in the stream; then the words of each notification
-- Returns: 'cancelled', 'before' if it was cancelled before, or 'again' if a state has changed
--@include ids
--@include order
--@include say
--@include append_notifications
--@include record_outcome
local id, mark, count = ARGV[1], ARGV[2], tonumber(ARGV[10])
if redis.call('HGET', KEYS[2], mark) then return 'before' end
local groups, number = {}, 0
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local info = {}
    for j = 1, #flat, 2 do info[flat[j]] = flat[j + 1] end
    groups[info['name']] = info['last-delivered-id']
    number = number + 1
  end
end
local function state(group)
  if not groups[group] or newer(id, groups[group]) then return 'waiting' end
  local held = redis.call('XPENDING', KEYS[1], group, id, id, 1)[1]
  return held and 'held ' .. held[2] or 'done'
end
for i = 1, count do
  local at = 8 + 3 * i
  if ARGV[at + 2] == '1' then number = number - 1 end
  if state(ARGV[at]) ~= ARGV[at + 1] then return 'again' end
end
if number ~= 0 or #redis.call('XRANGE', KEYS[1], id, id) == 0 then return 'again' end
redis.call('HSET', KEYS[2], mark, ARGV[4])
local awaited, asked = false, false
for i = 1, count do
  local group, was, key = ARGV[8 + 3 * i], ARGV[9 + 3 * i], 5 + 4 * i
  local consumer = string.match(was, '^held (.*)$')
  if consumer and consumer ~= ARGV[8] then
    -- This worker may still finish the task until it is settled.
    redis.call('HSET', KEYS[2], mark .. '\n' .. group, consumer)
    if redis.call('TYPE', KEYS[key + 3])['ok'] == 'hash' and redis.call('HGET', KEYS[key + 3], 'number') then
      local before = redis.call('HGET', KEYS[key + 3], 'cancelled') or ''
      -- Keep only the newest marks: a worker that has missed so many heartbeats is dead.
      redis.call('HSET', KEYS[key + 3], 'cancelled', string.sub(mark .. '\n' .. before, 1, 20000))
    end
    asked = true
  elseif was == 'done' then
    redis.call('HSET', KEYS[2], mark .. '\n' .. group, '')
  else
    if consumer then
      redis.call('XACK', KEYS[1], group, id)
      redis.call('HDEL', KEYS[key], id)
      redis.call('ZREM', KEYS[key + 1], id)
    end
    redis.call('SET', KEYS[key + 2], '! ' .. ARGV[5], 'EX', ARGV[6])
    redis.pcall('HINCRBY', KEYS[5], 'cancelled', 1)
    awaited = record_outcome(KEYS[4], KEYS[3], ARGV[3], group, '-' .. ARGV[5]) or awaited
  end
end
if not asked and ARGV[7] ~= '' then redis.call('ZREM', KEYS[6], order_member(ARGV[7], id)) end
-- Free the dedup key: a later publish with it is a new task.
local seen = redis.pcall('GET', KEYS[7])
if seen == ARGV[3] then redis.call('DEL', KEYS[7]) end
if ARGV[9] ~= '' then redis.pcall('HINCRBY', KEYS[5], ARGV[9], 1) end
append_notifications(KEYS[5], 9 + 4 * count, 11 + 3 * count)
-- Wake workers: they fetch their orders, and retry tasks that wait for this task's ordering key.
redis.call('XADD', KEYS[8], 'MAXLEN', 1, '*', 'order', '1')
return 'cancelled'
