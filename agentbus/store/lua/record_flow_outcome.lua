#!lua flags=allow-oom
-- Records the outcome of a flow's task, or of a compensation.
-- Once all tasks have ended and one was not done, publishes the compensations of the done tasks one
-- after the other, the last task's first. Without a member, continues a flow that has
-- recorded its last outcome, and neither ended nor published the next task.
-- KEYS: recorded outcomes, awaited (of the task's queue), the flow, flows, the task's result, then for each place, which is
--       the stream of tasks that undo others: the stream, order, delayed, bodies of delayed tasks, bell, awaited
-- ARGV: the record's field, the prefix of its members, the member or '', the outcome, 'end' or 'undo', the task's number,
--       flow, 1 if it was cancelled, seconds to keep a flow that is done, and another one, then each place
-- Returns: the flow's state once it has ended, else ''
--@include json
--@include order
--@include make_ready
--@include decode_task
--@include forget_outcome
local call, flow, time = redis.call, KEYS[3], redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function is_name(value) return type(value) == 'string' and not string.find(value, '%c') end
-- Publishes a task that undoes another, and returns whether its record allows it.
local function publish(n, task)
  local other, key = task.undo, nil
  for i = 11, #ARGV do
    if ARGV[i] == other.place then key = 6 * (i - 11) + 5 end
  end
  if not key or not is_name(other.id) or not is_name(task.group) then return false end
  local words = checked_task(other.body, 'null', { low = 1, normal = 1, high = 1, critical = 1 }, 5)
  local mark = other.id .. '\n' .. task.group
  -- If another program's key stands in the way, the janitor tries it again.
  if pcall(function()
    call('ZADD', KEYS[key + 6], 0, mark, 0, mark .. '\n00undo ' .. n .. ' ' .. ARGV[7])
    make_ready(other.id, words, { KEYS[key + 1], KEYS[key + 2], KEYS[key + 3], KEYS[key + 4], KEYS[key + 5] }, 0)
  end) then call('HSET', flow, 'undoing', n) end
  return true
end
-- Publishes the next task that undoes another, below some number. Returns whether the flow continues.
local function undo(below)
  for n = below - 1, 1, -1 do
    if call('HGET', flow, 'end ' .. n) == '+' then
      local task = decode(call('HGET', flow, 'task ' .. n) or '')
      local known = type(task) == 'table'
      if known and type(task.undo) == 'table' and publish(n, task) then return true end
      if not known or task.undo and task.undo ~= cjson.null then
        -- Another program has changed the record.
        call('HSET', flow, 'undoing', n, 'undo ' .. n, '!its record is not valid')
        redis.pcall('HINCRBY', flow, 'stuck', 1)
      end
    end
  end
  return false
end
local function close(state)
  local kept = tonumber(state == 'done' and ARGV[9] or ARGV[10])
  call('HSET', flow, 'state', state, 'ended', string.format('%d', now))
  call('EXPIRE', flow, kept)
  redis.pcall('ZADD', KEYS[4], string.format('%d', now + kept * 1000), ARGV[7])
  return state
end
-- Continues a flow all of whose tasks have ended.
local function continue(below)
  local numbers = call('HMGET', flow, 'failed', 'cancelled')
  if not numbers[1] and not numbers[2] then return close('done') end
  if undo(below) then return '' end
  numbers[3], numbers[4] = unpack(call('HMGET', flow, 'undoing', 'stuck'))
  if numbers[3] then return close(numbers[4] and 'compensation_failed' or 'compensated') end
  return close(numbers[1] and 'failed' or 'cancelled')
end
-- All that another program may have changed is checked before the first write.
local of = call('TYPE', flow)['ok'] == 'hash' and call('HMGET', flow, 'size', 'open', 'ended', 'undoing') or {}
local size, open, undoing = tonumber(of[1] or ''), tonumber(of[2] or ''), tonumber(of[4] or '')
local valid = size and open and size <= 1000 and open <= size and of[2] == string.format('%d', open) and not of[3]
local function record()
  if not valid or call('HSETNX', flow, ARGV[5] .. ' ' .. ARGV[6], ARGV[4]) == 0 then return '' end
  local counted = ARGV[4] ~= '+' and (ARGV[8] == '1' and 'cancelled' or 'failed')
  if ARGV[5] == 'undo' then
    if counted then redis.pcall('HINCRBY', flow, 'stuck', 1) end
    return continue(tonumber(ARGV[6]))
  end
  if counted then redis.pcall('HINCRBY', flow, counted, 1) end
  -- A later task of the flow may wait longer than results are usually kept.
  call('EXPIRE', KEYS[5], ARGV[10])
  return call('HINCRBY', flow, 'open', -1) > 0 and '' or continue(size + 1)
end
if ARGV[3] == '' then
  if not valid or open > 0 or undoing and (undoing > size or not call('HGET', flow, 'undo ' .. of[4])) then return '' end
  return continue(undoing or size + 1)
end
-- Since the caller has read it, the server may have lost the settlement: the task then runs again.
local state, kept = '', call('HGET', KEYS[1], ARGV[1]) or ''
if string.sub(kept, 1, 1) == string.sub(ARGV[4], 1, 1) and call('ZREM', KEYS[2], ARGV[3]) == 1 then state = record() end
forget_outcome(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
return state
