#!lua flags=allow-oom
-- Starts a task of a limited queue, or defers it.
-- First frees the slots of tasks that no longer run, and gives free slots to waiting tasks. Once
-- the queue has no limits, starts all of them.
-- KEYS: slots, waiting, tokens, bell, paused, then for each stream of the queue: the stream, its attempts, its retries
-- ARGV: group, consumer, the consumer that holds deferred tasks, the field of the limits among the paused, how many
--       may run at once with one key ('' for any number), how many may start in a second with one key ('' for any
--       number), the size of the bucket of tokens; then, unless only slots are given: the index of the task's stream,
--       its entry's id, its key, the attempts so far
-- Returns: 1 if the task may start, 0 if it was deferred, -1 if this consumer no longer holds it;
--          without a task, the number of tasks that got a slot, or in a queue without limits the
--          number of tasks that waited, at most 1,000 per step
--@include order
--@include replace
--@include keep_attempts
local call, group, aside = redis.call, ARGV[1], ARGV[3]
local most, rate, burst = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
-- In ms: how long a slot is reserved for a task that no worker takes, the interval at which a
-- waiting task asks again, and the longest such interval.
local RESERVED, AGAIN, LONGEST = 30000, 5000, 300000
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
local function stream(i) return KEYS[3 + 3 * i] end
local function attempts(i) return KEYS[4 + 3 * i] end
local function retries(i) return KEYS[5 + 3 * i] end
local function holder(i, id)
  if not KEYS[5 + 3 * (i or 0)] then return nil end
  local found = redis.pcall('XPENDING', stream(i), group, id, id, 1)
  return found[1] and found[1][2]
end
local function ring() replace(KEYS[4], 'XADD', 'MAXLEN', 1, '*', 'due', '0') end
-- If the limits were removed after this consumer read them, defer nothing, because nobody would
-- give out slots.
if type(redis.pcall('HGET', KEYS[5], ARGV[4])) ~= 'string' then
  local page = replace(KEYS[2], 'ZRANGE', 0, 999)
  for _, member in ipairs(page) do
    local i, id, ms, seq = string.match(member, '\n[%d%-]+ (%d) ((%d+)%-(%d+))$')
    if id and holder(tonumber(i), id) == aside then
      -- Let tasks become due in the order of their entries (as text, 1-10 would sort before 1-2).
      -- Tasks that a dead worker may have begun keep their scores.
      local at = math.min(now, tonumber(ms) + math.min(tonumber(seq), 999) / 1000)
      local due = tonumber(replace(retries(tonumber(i)), 'ZSCORE', id) or '')
      if due and due > at then call('ZADD', retries(tonumber(i)), string.format('%.3f', at), id) end
    end
  end
  if #page > 0 then
    call('ZREM', KEYS[2], unpack(page))
    ring()
  end
  if #page < 1000 then call('UNLINK', KEYS[1], KEYS[2], KEYS[3]) end
  if not ARGV[8] then return #page end
  return holder(tonumber(ARGV[8]), ARGV[9]) == ARGV[2] and 1 or -1
end
-- A slot holds 'run' or 'kept', its start, the consumer, and on a second line the key. It belongs
-- to a task that its consumer still holds, or is reserved until a consumer takes the task.
local used, slots = {}, {}
local stored = replace(KEYS[1], 'HGETALL')
for n = 1, #stored, 2 do
  local i, id = string.match(stored[n], '^(%d) (%d+%-%d+)$')
  local state, since, consumer, key = string.match(stored[n + 1], '^(%a+) (%d+) ([^\n]*)\n(.*)$')
  local by = id and state and holder(tonumber(i), id)
  if by and ((state == 'run' and by == consumer) or (state == 'kept' and now - tonumber(since) < RESERVED)) then
    used[key] = (used[key] or 0) + 1
    slots[stored[n]] = { state, key }
  else
    call('HDEL', KEYS[1], stored[n])
  end
end
-- Returns the current tokens of a key; a key without a record has a full bucket.
local function tokens(key)
  local had, at = string.match(replace(KEYS[3], 'HGET', key) or '', '^(%S+) (%S+)$')
  if not tonumber(had) or not tonumber(at) then return burst end
  return math.min(burst, tonumber(had) + math.max(0, now - tonumber(at)) / 1000 * rate)
end
local function free(key)
  return (not most or (used[key] or 0) < most) and (not rate or tokens(key) >= 1)
end
local function occupy(field, key, state, consumer)
  if rate then
    replace(KEYS[3], 'HSET', key, string.format('%.6f %.3f', tokens(key) - 1, now))
    -- After this time every bucket is full, and a full bucket needs no record.
    call('PEXPIRE', KEYS[3], math.ceil(burst / rate * 1000) + 1000)
  end
  used[key] = (used[key] or 0) + 1
  if most or state == 'kept' then
    replace(KEYS[1], 'HSET', field, string.format('%s %d %s\n%s', state, math.floor(now), consumer, key))
  end
end
-- Returns the first waiting tasks of each key in turn.
local given, from = 0, '-'
while true do
  local member = replace(KEYS[2], 'ZRANGEBYLEX', from, '+', 'LIMIT', 0, 1)[1]
  if not member then break end
  local key, i, id = string.match(member, '^(.*)\n[%d%-]+ (%d) (%d+%-%d+)$')
  local by = id and holder(tonumber(i), id)
  if not by then
    call('ZREM', KEYS[2], member)
  elseif by == aside and free(key) then
    occupy(i .. ' ' .. id, key, 'kept', aside)
    slots[i .. ' ' .. id] = { 'kept', key }
    call('ZREM', KEYS[2], member)
    -- Lower scores belong to tasks that a dead worker may have begun, which are due anyway.
    local due = tonumber(replace(retries(tonumber(i)), 'ZSCORE', id) or '')
    if due and due > 1000 then call('ZADD', retries(tonumber(i)), 1000, id) end
    given = given + 1
  elseif by == aside then
    from = '[' .. key .. '\n~'
  else
    -- The consumer of this call is asking for this task itself.
    from = '(' .. member
  end
end
if given > 0 then ring() end
if not ARGV[8] then return given end
local i, id, key = tonumber(ARGV[8]), ARGV[9], ARGV[10]
if holder(i, id) ~= ARGV[2] then return -1 end
local field = ARGV[8] .. ' ' .. id
local member = order_member(key, id) .. ' ' .. field
local slot = slots[field]
if slot and slot[2] == key then
  -- The slot was reserved for this task, or this is a resent request.
  if most then
    call('HSET', KEYS[1], field, string.format('run %d %s\n%s', math.floor(now), ARGV[2], key))
  else
    call('HDEL', KEYS[1], field)
  end
  return 1
end
if free(key) then
  occupy(field, key, 'run', ARGV[2])
  replace(KEYS[2], 'ZREM', member)
  return 1
end
replace(KEYS[2], 'ZADD', 0, member)
local before = call('ZLEXCOUNT', KEYS[2], '[' .. key .. '\n', '(' .. member)
local wait = AGAIN * (1 + before)
if rate and (not most or (used[key] or 0) < most) then wait = math.ceil((before + 1 - tokens(key)) / rate * 1000) end
keep_attempts(attempts(i), id, ARGV[11])
replace(retries(i), 'ZADD', string.format('%d', math.ceil(now) + math.max(1, math.min(wait, LONGEST))), id)
call('XCLAIM', stream(i), group, aside, 0, id, 'JUSTID')
return 0
