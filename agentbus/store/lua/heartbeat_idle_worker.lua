#!lua flags=allow-oom
-- Records the heartbeat of a worker that holds no task, and returns what it waits for.
-- KEYS: beats, the worker's record, paused, delayed, recorded outcomes, bell, then each stream of the queue and its
--       retries
-- ARGV: group, 1 to create the bell's group, how many rings were read from it, their ids, then as for `heartbeat_worker`
-- Returns: as `heartbeat_worker`, then ms until the next delayed task is due or '', ms until the
--          next deferred task is due or '', number of tasks held by the group's consumers, 1 if
--          outcomes of tasks with dependents are recorded
--@include replace
--@include heartbeat_worker
local group, rings = ARGV[1], tonumber(ARGV[3])
if ARGV[2] == '1' then
  -- With a group on the bell, each ring wakes only one idle worker.
  local made = redis.pcall('XGROUP', 'CREATE', KEYS[6], group, '$', 'MKSTREAM')
  if made.err and string.find(tostring(made.err), 'WRONGTYPE', 1, true) then
    redis.call('DEL', KEYS[6])
    redis.call('XGROUP', 'CREATE', KEYS[6], group, '$', 'MKSTREAM')
  end
end
if rings > 0 then redis.pcall('XACK', KEYS[6], group, unpack(ARGV, 4, 3 + rings)) end
local reply = heartbeat_worker(ARGV[4 + rings], ARGV[5 + rings], ARGV[6 + rings], 7 + rings)
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- A key of another type, stored by another program, must not end an idle worker.
local function due(key)
  local first = redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')
  return not first.err and tonumber(first[2]) or nil
end
local function left(at)
  return at and string.format('%d', math.ceil(math.min(math.max(at - now, -1e15), 1e15))) or ''
end
local retry, held = nil, 0
for i = 7, #KEYS, 2 do
  local at = due(KEYS[i + 1])
  if at and (not retry or at < retry) then retry = at end
  local pending = redis.pcall('XPENDING', KEYS[i], group)
  if not pending.err then held = held + pending[1] end
end
reply[5] = left(due(KEYS[4]))
reply[6] = left(retry)
reply[7] = held
reply[8] = redis.call('EXISTS', KEYS[5])
return reply
