#!lua
-- Publishes the tasks of a flow with its record, all or none; or publishes some tasks of an ended flow again.
-- KEYS: the flow, flows, once slot, queues, metrics, then for each place, which is a queue's stream: the stream,
--       order, stats, after, its bodies, delayed, bodies of delayed tasks, bell, awaited, readers, the retry stream, the counter of ids
-- ARGV: 1 not to count the refusal if tasks stay behind an unfinished one, flow, token, group, number of an earlier run ('' if
--       the flow is new), number of places, number of tasks, then for a new flow's record how many words, its fields and values;
--       for each place its queue, its bound, how many of the tasks go there; for each task its number, its place, its id, its
--       record, its body, how many of these tasks it waits for, their places in this list
-- Returns: {'published'}, {'exists'}, {'changed'} if an earlier run is not the last one or has not ended, {'taken', id} if
--          another program stored something under the id, or {'full', number, group, id, place} as publish does
--@include json
--@include once
--@include ids
--@include stream
--@include lowest_of_readers
--@include undelivered
--@include lowest_needed
--@include count_refused
--@include order
--@include make_ready
--@include decode_task
local before = already(KEYS[3], ARGV[3])
if before then return before end
local call = redis.call
local flow, group, run, places, number = KEYS[1], ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
if run == '' and call('EXISTS', flow) == 1 then return { 'exists' } end
if run ~= '' and (call('HGET', flow, 'run') ~= run or not call('HGET', flow, 'ended')) then return { 'changed' } end
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local words = tonumber(ARGV[8])
local at = 9 + words
for place = 1, places do
  local key, bound, wanted = 12 * place - 7, tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local kept = call('ZCARD', KEYS[key + 4]) + call('ZCARD', KEYS[key + 6])
  local fits, undone, blocking, oldest = room(KEYS[key + 1], bound - kept, wanted, KEYS[key + 10], KEYS[key + 11])
  if not fits then
    if ARGV[1] == '0' or oldest == '' then count_refused(KEYS[5], KEYS[key + 3], 100000, ARGV[at], wanted) end
    return { 'full', kept + undone, blocking, oldest, place }
  end
  at = at + 3
end
local tasks = {}
for n = 1, number do
  local task = { number = ARGV[at], key = 12 * tonumber(ARGV[at + 1]) - 7, id = ARGV[at + 2], record = ARGV[at + 3], body = ARGV[at + 4],
    waits = {} }
  for i = 1, tonumber(ARGV[at + 5]) do task.waits[i] = tonumber(ARGV[at + 5 + i]) end
  task.words = decode_task(task.body, { low = 1, normal = 1, high = 1, critical = 1 }, 5)
  for i = 5, 7, 2 do
    if call('HGET', KEYS[task.key + i], task.id) then return { 'taken', task.id } end
  end
  tasks[n], at = task, at + 6 + #task.waits
end
-- Write here first: a user who may not publish flows is refused before a task is published.
call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
call('ZADD', KEYS[2], '+inf', ARGV[2])
if run == '' then
  call('HSETNX', flow, 'created', string.format('%d', now))
  for i = 9, 8 + words, 2 do call('HSETNX', flow, ARGV[i], ARGV[i + 1]) end
  call('HSETNX', flow, 'run', 1)
  call('HSETNX', flow, 'open', number)
else
  call('HDEL', flow, 'ended', 'state', 'undoing', 'failed', 'cancelled', 'stuck')
  -- Keep the record until the flow has ended again.
  call('EXPIRE', flow, 34560000)
  call('HINCRBY', flow, 'run', 1)
  call('HSET', flow, 'open', number)
end
for place = 1, places do call('ZADD', KEYS[4], 'NX', time[1] .. '000', ARGV[6 + words + 3 * place]) end
for _, task in ipairs(tasks) do
  local key = task.key
  call(run == '' and 'HSETNX' or 'HSET', flow, 'task ' .. task.number, task.record)
  if run ~= '' then call('HDEL', flow, 'end ' .. task.number, 'undo ' .. task.number) end
  -- If the server has lost that the number was reserved, nobody else is to get it.
  local reserved = tonumber(string.match(task.id, '^d(%d+)@') or 0)
  while reserved > (tonumber(call('GET', KEYS[key + 12])) or 0) do call('INCR', KEYS[key + 12]) end
  local mark = task.id .. '\n' .. group
  call('ZADD', KEYS[key + 9], 0, mark, 0, mark .. '\n00flow ' .. task.number .. ' ' .. ARGV[2])
  if #task.waits == 0 then
    make_ready(task.id, task.words, { KEYS[key + 1], KEYS[key + 2], KEYS[key + 6], KEYS[key + 7], KEYS[key + 8] }, now)
  else
    local marks = {}
    local last = string.format('\n%02d', #string.match(task.id, '%d+')) .. task.id
    for i, n in ipairs(task.waits) do
      local other = tasks[n]
      marks[i] = other.id .. '\n' .. group
      call('ZADD', KEYS[other.key + 9], 0, marks[i] .. last)
    end
    call('HSETNX', KEYS[key + 5], task.id, task.body)
    call('HSETNX', KEYS[key + 5], task.id .. '\n', cjson.encode(marks))
    call('ZADD', KEYS[key + 4], #marks, task.id)
  end
end
return keep(KEYS[3], ARGV[3], { 'published' })
