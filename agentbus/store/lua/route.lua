#!lua
-- Moves tasks to the queues of their agents, appending and acknowledging in one step.
-- Defers tasks that cannot be moved now.
-- KEYS: stream, attempts, retries, triggers, queues, stats, then for each place four: stream, order, stats, readers; then
--       the seen keys and the windows of limits, by their numbers
-- ARGV: group, consumer, the consumer that holds deferred tasks, pause in ms, loop window in ms, dedup window in s,
--       the suffix of task ids, number of places, for each of these its queue, its bound and its agent, then for each
--       task: entry id, and the number of its place; or 0 if more follows: task id, attempts made, numbers of its two
--       seen keys (0: none), ordering key ('': none), who triggered it ('': unknown), 1 if the graph of triggers is
--       asked, number of candidates, and for each of these: place, envelope ('': new), trail ('': new), number of
--       limits, and for each of these: number of its key, how many, in how many ms
-- Returns: {when deferred tasks are tried again in ms or '', for each task the number of the candidate that got it,
--          or 0: not this consumer's, -1: a duplicate, -2: its queues are full or limited, -4: a circle, -5: too many
--          fields, -6: another program's key stands there}
--@include json
--@include held
--@include ids
--@include lowest_of_readers
--@include undelivered
--@include lowest_needed
--@include order
local call, pcall, stream, group = redis.call, redis.pcall, KEYS[1], ARGV[1]
local time = call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local window, suffix, places = tonumber(ARGV[5]), ARGV[7], tonumber(ARGV[8])
local base = 6 + 4 * places
local mine = held(stream, group, ARGV[2], '-', '+')
local gone, published, soonest, edges, fit, ways = {}, {}, nil, nil, {}, {}

-- Returns whether the recorded graph has a path from one agent to another.
local function reaches(from, to)
  if not edges then
    edges = {}
    local members = pcall('ZRANGEBYSCORE', KEYS[4], string.format('%d', now - window), '+inf')
    -- If the graph cannot be read, assume that a path exists.
    if members['err'] then return true end
    for _, member in ipairs(members) do
      local a, b = string.match(member, '^([^\n]*)\n(.*)$')
      if a then
        edges[a] = edges[a] or {}
        edges[a][b] = true
      end
    end
  end
  local known, left = { [from] = true }, { from }
  while #left > 0 do
    local agent = table.remove(left)
    if agent == to then return true end
    for other in pairs(edges[agent] or {}) do
      if not known[other] then
        known[other] = true
        left[#left + 1] = other
      end
    end
  end
  return false
end

-- Returns 1 if a place can take another task now, else the code of the reason.
local function fits(spot)
  local key = KEYS[3 + 4 * spot]
  if fit[spot] == nil then
    local kind = call('TYPE', key)['ok']
    fit[spot] = kind == 'stream' or kind == 'none'
  end
  if not fit[spot] then return -6 end
  return room(key, tonumber(ARGV[7 + 3 * spot]), 1, KEYS[6 + 4 * spot]) and 1 or -2
end

-- Returns the milliseconds until a limit admits another task; 0 if it does now.
local function limited(key, most, ms)
  if type(pcall('ZREMRANGEBYSCORE', key, '-inf', string.format('%d', now - ms))) == 'table' then return ms end
  if call('ZCARD', key) < most then return 0 end
  local oldest = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  return oldest and math.max(1, tonumber(oldest) + ms - now) or ms
end

-- Returns the envelope and the trail of a task that reaches an agent from outside.
local function first(spot)
  if not ways[spot] then
    local way = string.format('[[%s,%d]]', cjson.encode(ARGV[8 + 3 * spot]), now)
    ways[spot] = { string.format('{"trail":%s}', way), way }
  end
  return ways[spot][1], ways[spot][2]
end

-- Appends a copy of an entry, and returns its id; nil if it has too many fields.
local function copied(spot, entry, task, envelope, trail)
  local words, ours = {}, false
  for i = 1, #entry, 2 do ours = ours or entry[i] == 'payload' end
  for i = 1, #entry, 2 do
    local name = entry[i]
    if not (ours and (name == 'meta' or name == 'id') or name == 'agentbus_trail') then
      words[#words + 1] = name
      words[#words + 1] = entry[i + 1]
    end
  end
  -- Refuse huge entries: Lua's stack holds about 8,000 words.
  if #words > 7000 then return nil end
  if ours then
    words[#words + 1], words[#words + 2], words[#words + 3], words[#words + 4] = 'meta', envelope, 'id', task
  else
    words[#words + 1], words[#words + 2] = 'agentbus_trail', trail
  end
  return call('XADD', KEYS[3 + 4 * spot], '*', unpack(words))
end

-- Moves a task that has only a payload and one candidate.
local function plainly(id, spot)
  local code = fits(spot)
  if code < 1 then return code end
  local entry = call('XRANGE', stream, id, id)[1]
  -- The entry was trimmed; the consumer that reclaims the task reports that.
  if not entry then return 0 end
  local envelope, trail = first(spot)
  if not copied(spot, entry[2], id .. suffix, envelope, trail) then return -5 end
  published[spot] = (published[spot] or 0) + 1
  return 1
end

-- Moves a task to the first candidate that can take it now.
local function move(id, task, key, from, asked, candidates)
  local code, wait = -2, nil
  for n, one in ipairs(candidates) do
    local spot, bars = one.place, 0
    local agent = ARGV[8 + 3 * spot]
    for _, limit in ipairs(one.limits) do
      bars = math.max(bars, limited(KEYS[base + limit[1]], limit[2], limit[3]))
    end
    local free = fits(spot)
    if free == -2 then bars = math.max(bars, tonumber(ARGV[4])) end
    if asked and (from == agent or reaches(agent, from)) then
      code = -4
    elseif free == -6 then
      code = free
    elseif bars > 0 then
      wait = math.min(wait or bars, bars)
    else
      local entry = call('XRANGE', stream, id, id)[1]
      if not entry then return 0 end
      local envelope, trail = first(spot)
      if one.envelope ~= '' then envelope, trail = one.envelope, one.trail end
      local new = copied(spot, entry[2], task, envelope, trail)
      if not new then return -5 end
      -- The task has been moved: an error at corrupted keys must not cause a second move.
      if key ~= '' then pcall('ZADD', KEYS[4 + 4 * spot], 0, order_member(key, new)) end
      for _, limit in ipairs(one.limits) do
        pcall('ZADD', KEYS[base + limit[1]], now, new)
        pcall('PEXPIRE', KEYS[base + limit[1]], limit[3])
      end
      if from ~= '' then
        pcall('ZADD', KEYS[4], now, from .. '\n' .. agent)
        if edges then
          edges[from] = edges[from] or {}
          edges[from][agent] = true
        end
      end
      published[spot] = (published[spot] or 0) + 1
      return n
    end
  end
  -- If a candidate may take the task later, do not refuse it for another candidate's reason.
  return wait and -2 or code, wait
end

-- Reads the further words of a task, and returns them with the position of the next task.
local function read(at)
  local found = { task = ARGV[at], made = ARGV[at + 1], slots = {}, key = ARGV[at + 4] }
  for i = at + 2, at + 3 do
    if ARGV[i] ~= '0' then found.slots[#found.slots + 1] = KEYS[base + tonumber(ARGV[i])] end
  end
  found.from, found.asked, found.candidates = ARGV[at + 5], ARGV[at + 6] == '1', {}
  local number = tonumber(ARGV[at + 7])
  at = at + 8
  for n = 1, number do
    local one = { place = tonumber(ARGV[at]), envelope = ARGV[at + 1], trail = ARGV[at + 2], limits = {} }
    local many = tonumber(ARGV[at + 3])
    at = at + 4
    for i = 1, many do
      one.limits[i] = { tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]) }
      at = at + 3
    end
    found.candidates[n] = one
  end
  return found, at
end

-- From here to the acknowledgement, no command may fail because of another program's data: tasks
-- moved so far would be moved again.
local reply, at, twice = { '' }, 9 + 3 * places, 0
while at <= #ARGV do
  local id, spot, code, wait, more = ARGV[at], tonumber(ARGV[at + 1]), 0, nil, nil
  at = at + 2
  if spot == 0 then more, at = read(at) end
  if mine[id] then
    if not more then
      code = plainly(id, spot)
    else
      for _, slot in ipairs(more.slots) do
        local before = pcall('GET', slot)
        if type(before) == 'table' then
          code = -6
        elseif before and before ~= more.task and code == 0 then
          code = -1
        end
      end
      if code == -1 then
        twice = twice + 1
      elseif code == 0 then
        code, wait = move(id, more.task, more.key, more.from, more.asked, more.candidates)
        if code > 0 then
          for _, slot in ipairs(more.slots) do pcall('SET', slot, more.task, 'EX', ARGV[6]) end
        end
      end
    end
  end
  if code > 0 or code == -1 then
    gone[#gone + 1] = id
  elseif code == -2 then
    local due = now + (wait or tonumber(ARGV[4]))
    pcall('HSET', KEYS[2], id, more and more.made or 0)
    -- A task that cannot be deferred stays pending, and is reclaimed like that of a dead consumer.
    if type(pcall('ZADD', KEYS[3], due, id)) ~= 'table' then
      call('XCLAIM', stream, group, ARGV[3], 0, id, 'JUSTID')
    end
    soonest = math.min(soonest or due, due)
  end
  reply[#reply + 1] = code
end
if #gone > 0 then
  call('XACK', stream, group, unpack(gone))
  pcall('HDEL', KEYS[2], unpack(gone))
  pcall('HINCRBY', KEYS[6], 'processed', #gone)
end
if twice > 0 then pcall('HINCRBY', KEYS[6], 'duplicates', twice) end
for spot, number in pairs(published) do
  pcall('HINCRBY', KEYS[5 + 4 * spot], 'published', number)
  pcall('ZADD', KEYS[5], 'NX', time[1] .. '000', ARGV[6 + 3 * spot])
end
if window > 0 then pcall('ZREMRANGEBYSCORE', KEYS[4], '-inf', string.format('(%d', now - window)) end
if soonest then reply[1] = string.format('%d', soonest) end
return reply
