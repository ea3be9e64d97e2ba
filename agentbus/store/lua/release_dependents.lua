#!lua flags=allow-oom
-- Releases tasks of one queue from dependencies that are done.
-- Tasks without further dependencies become ready.
-- KEYS: recorded outcomes, awaited (of the finished tasks' queue), after, its bodies, delayed, bodies of delayed
--       tasks, bell, then for each of ARGV's priorities its stream and its order
-- ARGV: number of priorities, the priorities, then the members of awaited, which are the record's field, a newline,
--       two digits, and the dependent
-- Returns: number of tasks that became ready
--@include json
--@include order
--@include make_ready
--@include forget_outcome
--@include decode_task
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local number, places, freed, fields, done = tonumber(ARGV[1]), {}, 0, {}, {}
for i = 1, number do places[ARGV[1 + i]] = 6 + 2 * i end
for i = 2 + number, #ARGV do
  local field, id = string.match(ARGV[i], '^(.*)\n%d%d([^\n]*)$')
  if fields[#fields] ~= field then
    fields[#fields + 1] = field
    -- Since the caller has read it, the server may have lost the settlement: the task then runs again.
    done[field] = redis.call('HGET', KEYS[1], field) == '+'
  end
  -- Count each member once, even if several processes pass it.
  if done[field] and redis.call('ZREM', KEYS[2], ARGV[i]) == 1 and redis.call('ZSCORE', KEYS[3], id)
    and tonumber(redis.call('ZINCRBY', KEYS[3], -1, id)) < 1 then
    local found = redis.call('HGET', KEYS[4], id)
    if found then
      local task = decode_task(found, places, 5)
      local at = places[task[1]]
      make_ready(id, task, { KEYS[at], KEYS[at + 1], KEYS[5], KEYS[6], KEYS[7] }, now)
    end
    redis.call('ZREM', KEYS[3], id)
    redis.call('HDEL', KEYS[4], id, id .. '\n')
    freed = freed + 1
  end
end
for _, field in ipairs(fields) do forget_outcome(KEYS[1], KEYS[2], field, field .. '\n') end
return freed
