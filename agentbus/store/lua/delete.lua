#!lua flags=allow-oom
-- Deletes a queue or one of its groups, unless it has live workers or unfinished tasks.
-- A further step dead-letters tasks of other queues that wait for its unfinished tasks.
-- KEYS: queues, once slot, paused, the counter of ids, awaited, recorded outcomes, beats, delayed, after, positions, the streams, the
--       records of workers, dead letters and purged ones of each group, then all else to delete
-- ARGV: token, 1 to delete in any case, queue, group ('' for the whole queue), milliseconds after which a silent
--       worker is dead, the field of the queue's pause, the outcome to record for dependents, number of streams,
--       number of workers, how many groups with dead letters, then the group's field among the positions for each
--       stream, the workers, then for each task that a router moved here, and each of its members in the index of the
--       queue where it was: number of its stream, entry, member
-- Returns: {'deleted', unfinished tasks, dead letters, the server's time in ms, number of the last delayed task,
--          live workers}, {'refused', unfinished tasks, dependents elsewhere, live workers}, or {'absent'}
--@include json
--@include once
--@include ids
local before = already(KEYS[2], ARGV[1])
if before then return before end
local call, group = redis.call, ARGV[4]
local streams, workers, boxes = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- A key of another type, stored by another program, counts as empty and is deleted too.
local function size(command, key)
  return tonumber(redis.pcall(command, key)) or 0
end
local function is_stream(key)
  return redis.call('TYPE', key)['ok'] == 'stream'
end

local live = {}
for i = 1, workers do
  local name = ARGV[10 + streams + i]
  local seen = tonumber(redis.pcall('ZSCORE', KEYS[7], name) or 0) or 0
  local works = redis.pcall('HMGET', KEYS[10 + streams + i], 'queue', 'group')
  if seen >= now - tonumber(ARGV[5]) and works[1] == ARGV[3] and (group == '' or works[2] == group) then
    live[#live + 1] = name
  end
end

-- Returns the number of tasks that a group has not finished.
local function left(stream, info)
  local waiting = info['lag']
  if type(waiting) ~= 'number' then
    waiting = #call('XRANGE', stream, '(' .. info['last-delivered-id'], '+', 'COUNT', 1000)
  end
  return info['pending'] + math.min(waiting, call('XLEN', stream))
end

local undone, there, reached = 0, false, {}
for i = 11, 10 + streams do
  reached[i] = {}
  if is_stream(KEYS[i]) then
    local most, groups = 0, call('XINFO', 'GROUPS', KEYS[i])
    for _, flat in ipairs(groups) do
      local info = {}
      for j = 1, #flat, 2 do info[flat[j]] = flat[j + 1] end
      reached[i][info['name']] = info['last-delivered-id']
      if group == '' or info['name'] == group then most, there = math.max(most, left(KEYS[i], info)), true end
    end
    if group == '' and #groups == 0 then most = call('XLEN', KEYS[i]) end
    undone = undone + most
  end
end
if group == '' then
  undone = undone + size('ZCARD', KEYS[8]) + size('ZCARD', KEYS[9])
else
  for i = 11 + streams + workers, #KEYS do there = there or call('EXISTS', KEYS[i]) == 1 end
  if not there then return { 'absent' } end
end

-- Returns whether a task that was moved here still exists and a group has not finished it.
local function open(i, entry, of)
  local function holds(name)
    return #redis.pcall('XPENDING', KEYS[i], name, entry, entry, 1) == 1
  end
  local function passed(name)
    local last = reached[i][name]
    return last and not newer(entry, last) and not holds(name)
  end
  -- An entry in the retry stream, the last stream, belongs only to the group that holds it.
  if i == 10 + streams then return holds(of) end
  return not passed(of) and not passed('router')
end

-- List each task that other tasks wait for, with the group.
local heads, dependents, awaited = {}, 0, redis.pcall('ZRANGE', KEYS[5], 0, -1)
for i = 11 + streams + workers, #ARGV, 3 do
  local member = ARGV[i + 2]
  local of = string.match(member, '^[^\n]*\n([^\n]*)')
  if of and open(10 + tonumber(ARGV[i]), ARGV[i + 1], of) then awaited[#awaited + 1] = member end
end
for _, member in ipairs(awaited) do
  local _, of, rest = string.match(member, '^([^\n]*)\n([^\n]*)(.*)$')
  if of and (group == '' or of == group) then
    if rest == '' then
      heads[#heads + 1] = member
    elseif type(redis.pcall('ZSCORE', KEYS[9], string.sub(rest, 4))) ~= 'string' then
      dependents = dependents + 1
    end
  end
end
if ARGV[2] ~= '1' and (undone > 0 or dependents > 0 or #live > 0) then
  return { 'refused', undone, dependents, live }
end

for _, head in ipairs(heads) do redis.pcall('HSETNX', KEYS[6], head, ARGV[7]) end
local dead, last = 0, 11 + streams + workers
for i = last, last + 2 * boxes - 1, 2 do dead = dead + math.max(0, size('XLEN', KEYS[i]) - size('SCARD', KEYS[i + 1])) end
-- The counter stays: an id is never given again, since its result may still be kept.
local made = redis.pcall('GET', KEYS[4])
if group == '' then
  for i = 8, 10 + streams do call('UNLINK', KEYS[i]) end
  redis.pcall('ZREM', KEYS[1], ARGV[3])
  redis.pcall('HDEL', KEYS[3], ARGV[6], (string.gsub(ARGV[6], '^queue:', 'limit:')))
else
  for i = 1, streams do
    if is_stream(KEYS[10 + i]) then call('XGROUP', 'DESTROY', KEYS[10 + i], group) end
    redis.pcall('HDEL', KEYS[10], ARGV[10 + i])
  end
end
for i = last, #KEYS do call('UNLINK', KEYS[i]) end
return keep(KEYS[2], ARGV[1], { 'deleted', undone, dead, string.format('%d', now), type(made) == 'string' and made or '0', live })
