#!lua flags=allow-oom
-- Changes the due time or the priority of a task that no worker holds.
-- The task is delayed, or waits for others or for a retry.
-- KEYS: delayed, its bodies, after, its bodies, bell, then for each place where it may wait for a retry its retries
-- ARGV: task id, priority ('' to leave it), when it is due in unix ms ('' to leave it), 1 for at once, then its entry at
--       each of these places
-- Returns: 1, or 0 if the task is in another state
--@include json
--@include decode_task
local call, time = redis.call, redis.call('TIME')
local id, priority, due = ARGV[1], ARGV[2], ARGV[3]
local now = string.format('%d', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local known = { low = 1, normal = 1, high = 1, critical = 1 }
local when = ARGV[4] == '1' and now or due
-- Changes the body of a task, in which `fixed` words precede its fields and values.
local function change(bodies, fixed)
  local found = call('HGET', bodies, id)
  if not found then return end
  local task = decode_task(found, known, fixed)
  if priority ~= '' then task[1] = priority end
  if fixed == 5 and when ~= '' then task[3] = ARGV[4] == '1' and '' or when end
  call('HSET', bodies, id, cjson.encode(task))
end
local changed = 0
if call('ZSCORE', KEYS[1], id) then
  if priority ~= '' then change(KEYS[2], 2) end
  if when ~= '' then call('ZADD', KEYS[1], 'XX', when, id) end
  changed = 1
elseif call('ZSCORE', KEYS[3], id) then
  change(KEYS[4], 5)
  changed = 1
elseif priority == '' then
  for i = 6, #KEYS do
    local waits = tonumber(redis.pcall('ZSCORE', KEYS[i], ARGV[i - 1]) or 0)
    -- A lower score marks a task that a dead worker may have begun: it stays due at once.
    if waits and waits >= 1000 then
      call('ZADD', KEYS[i], 'XX', when, ARGV[i - 1])
      changed = 1
    end
  end
end
if changed == 1 and when ~= '' then call('XADD', KEYS[5], 'MAXLEN', 1, '*', 'due', when) end
return changed
