#!lua flags=allow-oom
-- Takes tasks that were put aside and are due; trimmed ones become tombstones.
-- KEYS: stream, retries, dead letters, stats, attempts, awaited, recorded outcomes, cancelled, the tasks held by hand; the log of
--       attempts, if there is one
-- ARGV: group, consumer, limit, limit for tasks without an attempt so far (0: they are like the others), 1 if a suspect
--       may be taken, the part of a task's id after the entry's id, then the three fields and values of a tombstone, the
--       queue first; the bound of the log of attempts
-- Returns: {entries, ms until the next one is due or '', number of lost tasks, their kind, the record of each one's attempts}:
--          1 if they are without an attempt: they run as if for the first time, and their records are deleted; 2 for one
--          suspect, which its holder may have begun before it died; else 0. The record of a cancelled one is ''. With a log of
--          attempts also when each one was due
--@include json
--@include ids
--@include record_outcome
--@include cut_off
local call = redis.call
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local firsts, suspects = tonumber(ARGV[4]), ARGV[5] == '1'
local most, kind = math.max(tonumber(ARGV[3]), firsts), nil
local taken, numbers, lost, overdue = {}, {}, 0, 0
local dues, unfinished = {}, {}
-- Deletes the record of who held a task by hand until now.
local function forget_holder(entry, record)
  local named = {}
  for i = 1, #entry[2] - 1, 2 do named[entry[2][i]] = entry[2][i + 1] end
  local name = named['id'] or named['agentbus_moved_from'] or entry[1] .. ARGV[6]
  redis.pcall('HDEL', KEYS[9], name .. '\n' .. ARGV[1] .. '\n' .. string.match(record, ' hand:(.*)$'))
end
-- Takes tasks, and deletes the records of tasks without a counted attempt, and of missing entries.
local function take(members, records, first)
  local scores = KEYS[10] and call('ZMSCORE', KEYS[2], unpack(members))
  call('ZREM', KEYS[2], unpack(members))
  local ids, found, gone = {}, {}, {}
  for i, id in ipairs(members) do
    if is_id(id) then ids[#ids + 1] = id end
    if scores and string.find(records[i] or '', ' hand:', 1, true) then
      local pending = call('XPENDING', KEYS[1], ARGV[1], id, id, 1)[1]
      if pending then add_cut_off(unfinished, KEYS[1], KEYS[5], id, pending[2], ARGV[6]) end
    end
  end
  if #ids > 0 then
    for _, entry in ipairs(call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(ids))) do found[entry[1]] = entry end
  end
  for i, id in ipairs(members) do
    if first or not found[id] then gone[#gone + 1] = id end
    if found[id] then
      taken[#taken + 1], numbers[#numbers + 1] = found[id], records[i] or ''
      if scores then dues[#dues + 1] = scores[i] or '' end
      if string.find(records[i] or '', ' hand:', 1, true) then
        overdue = overdue + 1
        forget_holder(found[id], records[i])
      end
    elseif is_id(id) and #call('XRANGE', KEYS[1], id, id) == 0 then
      lost = lost + 1
      call('XACK', KEYS[1], ARGV[1], id)
      call('XADD', KEYS[3], '*', 'original_id', id, unpack(ARGV, 7, 12))
      record_outcome(KEYS[6], KEYS[7], id .. ARGV[6], ARGV[1], '!it was trimmed away before it was done')
    end
    -- Otherwise the group was created again, and redelivers the entry from the beginning.
  end
  if #gone > 0 then redis.pcall('HDEL', KEYS[5], unpack(gone)) end
end
-- Take only one kind per call, since the kinds are run and acknowledged differently.
local function take_suspect()
  while suspects and #taken == 0 and lost < 100 do
    local id = redis.pcall('ZRANGEBYSCORE', KEYS[2], '-inf', 999, 'LIMIT', 0, 1)[1]
    if not id then return end
    take({ id }, {}, false)
    kind = 2
  end
end
take_suspect()
if #taken == 0 then
  kind = nil
  local due, ids, records = redis.pcall('ZRANGEBYSCORE', KEYS[2], 1000, now, 'LIMIT', 0, math.min(most, 1000)), {}, {}
  local attempts = #due > 0 and redis.pcall('HMGET', KEYS[5], unpack(due))
  local cancelled = #due > 0 and call('EXISTS', KEYS[8]) == 1
  for i, id in ipairs(due) do
    if cancelled and type(redis.pcall('HGET', KEYS[8], id .. ARGV[6])) == 'string' then attempts[i] = '' end
    local first = firsts > 0 and attempts[i] == '0'
    local made, mark = string.match(attempts[i] or '', '^(%d+) ([^-].*)$')
    if made and not string.find(mark, '^hand:') then
      -- A suspect that waited for its ordering key or for a limit becomes a suspect again.
      call('ZADD', KEYS[2], math.min(made, 999), id)
    else
      if kind == nil then
        kind = first and 1 or 0
        most = first and firsts or tonumber(ARGV[3])
      end
      if (kind == 1) ~= first or #ids + lost >= most then break end
      ids[#ids + 1], records[#ids + 1] = id, attempts[i]
    end
  end
  if #ids > 0 then
    take(ids, records, kind == 1)
  else
    take_suspect()
  end
end
if lost > 0 then redis.pcall('HINCRBY', KEYS[4], 'lost', lost) end
if overdue > 0 then redis.pcall('HINCRBY', KEYS[4], 'reclaimed', overdue) end
local next = redis.pcall('ZRANGEBYSCORE', KEYS[2], suspects and '-inf' or 1000, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local left = next[2] and string.format('%d', math.ceil(math.min(math.max(0, tonumber(next[2]) - now), 1e15))) or ''
if KEYS[10] then log_cut_off(unfinished, KEYS[10], ARGV[13], ARGV[8], ARGV[1], ARGV[6]) end
return { taken, left, lost, kind or 0, numbers, KEYS[10] and dues or nil }
