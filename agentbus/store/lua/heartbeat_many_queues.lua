#!lua flags=allow-oom
-- Records the heartbeat of a worker of many queues, and returns which of these queues need a separate worker.
-- KEYS: beats, the worker's record, paused, recorded outcomes, then for each queue: delayed, bell, and each of its streams
--       with its retries
-- ARGV: group, the consumer that holds deferred tasks, number of queues, the field of each one's pause, then as for
--       `heartbeat_worker`
-- Returns: as `heartbeat_worker`, then 1 if outcomes of tasks with dependents are recorded, and for each queue: {ms until a delayed
--          task, or one put aside, is due or '', 1 if consumers hold tasks, 1 if it is paused, the last id of its bell,
--          and for each stream the last id that the group was given}
--@include replace
--@include heartbeat_worker
local group, aside, queues = ARGV[1], ARGV[2], tonumber(ARGV[3])
local at = 4 + queues
local reply = heartbeat_worker(ARGV[at], ARGV[at + 1], ARGV[at + 2], at + 3)
reply[5] = redis.call('EXISTS', KEYS[4])
reply[6] = {}
if queues == 0 then return reply end
local each = (#KEYS - 4) / queues
local orders = replace(KEYS[3], 'HMGET', unpack(ARGV, 4, 3 + queues))
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function sooner(key, due)
  local first = redis.pcall('ZRANGE', key, 0, 0, 'WITHSCORES')
  -- A key of another type, stored by another program, must not end an idle worker.
  local left = not first.err and tonumber(first[2]) or nil
  if left and (not due or left < due) then return left end
  return due
end
for queue = 1, queues do
  local from = 5 + each * (queue - 1)
  local due, held, ids = sooner(KEYS[from], nil), 0, {}
  local ring = redis.pcall('XREVRANGE', KEYS[from + 1], '+', '-', 'COUNT', 1)
  for i = from + 2, from + each - 1, 2 do
    due = sooner(KEYS[i + 1], due)
    local last = '0-0'
    local groups = redis.pcall('XINFO', 'GROUPS', KEYS[i])
    for _, found in ipairs(groups.err and {} or groups) do
      local info = {}
      for j = 1, #found, 2 do info[found[j]] = found[j + 1] end
      if info['name'] == group then
        last = info['last-delivered-id']
        if info['pending'] > 0 then
          for _, consumer in ipairs(redis.pcall('XPENDING', KEYS[i], group)[4] or {}) do
            if consumer[1] ~= aside then held = 1 end
          end
        end
      end
    end
    ids[#ids + 1] = last
  end
  reply[6][queue] = {
    due and string.format('%d', math.ceil(math.min(math.max(0, due - now), 1e15))) or '', held, orders[queue] and 1 or 0,
    not ring.err and ring[1] and ring[1][1] or '0-0', unpack(ids),
  }
end
return reply
