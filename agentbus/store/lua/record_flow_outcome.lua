#!lua flags=allow-oom
-- Records the outcome of a flow's task, or of one that undoes it. Once all have ended and one was not done, publishes the
-- tasks that undo those that were done, one after the other, the last first.
-- KEYS: recorded outcomes, awaited (of the task's queue), the flow, flows, the task's result, then for each place, which is
--       the stream of tasks that undo others: the stream, order, delayed, bodies of delayed tasks, bell, awaited
-- ARGV: the record's field, the prefix of its members, the member, the outcome, 'end' or 'undo', the task's number, flow, 1
--       if it was cancelled, seconds to keep a flow that is done, and another one, then each place
-- Returns: the flow's state once it has ended, else ''
--@include order
--@include make_ready
--@include forget_outcome
local call, flow, time = redis.call, KEYS[3], redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Publishes the next task that undoes another, below some number. Returns whether there is one.
local function undo(below)
  for n = below - 1, 1, -1 do
    local task = call('HGET', flow, 'end ' .. n) == '+' and cjson.decode(call('HGET', flow, 'task ' .. n))
    local other = task and type(task.undo) == 'table' and task.undo
    for i = 11, other and #ARGV or 0 do
      if ARGV[i] == other.place then
        local key = 6 * (i - 11) + 5
        local mark = other.id .. '\n' .. task.group
        call('ZADD', KEYS[key + 6], 0, mark, 0, mark .. '\n00undo ' .. n .. ' ' .. ARGV[7])
        make_ready(other.id, other.body, { KEYS[key + 1], KEYS[key + 2], KEYS[key + 3], KEYS[key + 4], KEYS[key + 5] }, 0)
        call('HSET', flow, 'undoing', n)
        return true
      end
    end
  end
  return false
end
local function close(state)
  local kept = tonumber(state == 'done' and ARGV[9] or ARGV[10])
  call('HSET', flow, 'state', state, 'ended', string.format('%d', now))
  call('EXPIRE', flow, kept)
  call('ZADD', KEYS[4], string.format('%d', now + kept * 1000), ARGV[7])
  return state
end
local function record()
  if call('EXISTS', flow) == 0 or call('HSETNX', flow, ARGV[5] .. ' ' .. ARGV[6], ARGV[4]) == 0 then return '' end
  local counted = ARGV[4] ~= '+' and (ARGV[8] == '1' and 'cancelled' or 'failed')
  local below = tonumber(ARGV[6])
  if ARGV[5] == 'end' then
    if counted then call('HINCRBY', flow, counted, 1) end
    -- A task that follows may wait for longer than results are kept.
    call('EXPIRE', KEYS[5], ARGV[10])
    if call('HINCRBY', flow, 'open', -1) > 0 then return '' end
    below = tonumber(call('HGET', flow, 'size')) + 1
  elseif counted then
    call('HINCRBY', flow, 'stuck', 1)
  end
  local numbers = call('HMGET', flow, 'failed', 'cancelled', 'undoing', 'stuck')
  if not numbers[1] and not numbers[2] then return close('done') end
  if undo(below) then return '' end
  if call('HGET', flow, 'undoing') then return close(numbers[4] and 'compensation_failed' or 'compensated') end
  return close(numbers[1] and 'failed' or 'cancelled')
end
local state = ''
if call('ZREM', KEYS[2], ARGV[3]) == 1 then state = record() end
forget_outcome(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
return state
