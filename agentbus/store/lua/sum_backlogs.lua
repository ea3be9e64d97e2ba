#!lua flags=no-writes
-- Sums up waiting and held tasks of queues by group, without payloads and consumers.
-- KEYS: for each queue its streams (the last one that of retries, in which nothing is undelivered), its delayed tasks
--       and its dependent tasks; or its first stream alone
-- ARGV: how many streams a queue has, how many undelivered entries of a stream to count where the server does not know,
--       and how many bytes of them to read for it, then for each queue '~' if the first stream is enough, and the place
--       of its group behind which the caller knows the oldest task ('': none)
-- Returns: {the server's time in ms, then for each queue {1 if it has a stream, delayed, dependent, then for each group
--          (one with an empty name if there is none) name, entries not delivered, id of the oldest of them or '=' if the
--          caller knows it, pending, and the group's place if one stream alone has tasks}}
--@include ids
--@include undelivered
local time = redis.call('TIME')
local found = { tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) }
local width, most, bytes = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

local function count(key)
  local number = redis.pcall('ZCARD', key)
  return type(number) == 'number' and number or 0
end
local function after(key, id)
  local entry = redis.call('XRANGE', key, id, '+', 'COUNT', 1)[1]
  return entry and entry[1] or ''
end
local function older(a, b)
  if a == '' or b == '' then return a == '' and b or a end
  return newer(a, b) and b or a
end

-- waiting(key, length, delivered, lag, known): returns the number of entries of a stream that were
-- not delivered to a group, and the id of the oldest. Without a group, `delivered` is nil.
local function waiting(key, length, delivered, lag, known)
  if length == 0 or lag == 0 then return 0, '' end
  if not delivered then return length, known == '-' and '=' or after(key, '-') end
  if type(lag) ~= 'number' then
    local first = after(key, '-')
    if newer(first, delivered) then return length, first end
    local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
    lag = undelivered(key, length, first, last and last[1] or '', delivered, nil, most, bytes)
    if lag == 0 then return 0, '' end
  end
  -- Limit the server's lag, which includes trimmed entries.
  return math.max(0, math.min(lag, length)), known == delivered and '=' or after(key, '(' .. delivered)
end
-- about(flat): returns the name, last delivered id, lag and number of pending entries of a group in
-- XINFO.
local function about(flat)
  local name, delivered, lag, pending
  for i = 1, #flat, 2 do
    local field = flat[i]
    if field == 'name' then
      name = flat[i + 1]
    elseif field == 'last-delivered-id' then
      delivered = flat[i + 1]
    elseif field == 'lag' then
      lag = flat[i + 1]
    elseif field == 'pending' then
      pending = flat[i + 1]
    end
  end
  return name, delivered, lag, pending
end
-- entries(key): returns the length of a stream, or nil if it does not exist.
local function entries(key)
  local length = redis.pcall('XLEN', key)
  return type(length) == 'number' and (length > 0 or redis.call('EXISTS', key) == 1) and length or nil
end
-- single(at): returns whether only the first stream of a queue has tasks. A worker creates the
-- others, but leaves them empty.
local function single(at)
  for i = at + 1, at + width - 1 do
    if redis.pcall('XLEN', KEYS[i]) ~= 0 then return false end
  end
  return redis.call('EXISTS', KEYS[at + width], KEYS[at + width + 1]) == 0
end

-- alone(key, known): returns the row of a queue with a single stream, the usual case; nil if it has
-- no stream.
local function alone(key, known)
  local length = entries(key)
  if not length then return nil end
  local row, n = { 1, 0, 0 }, 3
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local name, delivered, lag, pending = about(flat)
    local number, oldest = waiting(key, length, delivered, lag, known)
    row[n + 1], row[n + 2], row[n + 3], row[n + 4], row[n + 5] = name, number, oldest, pending, delivered
    n = n + 5
  end
  if n == 3 then
    local number, oldest = waiting(key, length, nil, nil, known)
    row[4], row[5], row[6], row[7], row[8] = '', number, oldest, 0, '-'
  end
  return row
end

-- all(at): returns the row of any other queue.
local function all(at)
  local there, order, rows, ungrouped = 0, {}, {}, {}
  local function add(name, number, oldest, pending)
    if not rows[name] then
      rows[name] = { name, 0, '', 0, '' }
      order[#order + 1] = name
    end
    local row = rows[name]
    row[2], row[3], row[4] = row[2] + number, older(row[3], oldest), row[4] + pending
  end
  for i = at, at + width - 1 do
    local key = KEYS[i]
    local length = entries(key)
    if length then
      there = 1
      local met, retries = {}, i == at + width - 1
      -- An empty stream has the same groups as the first one.
      if length > 0 or i == at then
        for _, flat in ipairs(redis.call('XINFO', 'GROUPS', key)) do
          local name, delivered, lag, pending = about(flat)
          local number, oldest = 0, ''
          if not retries then number, oldest = waiting(key, length, delivered, lag, '') end
          met[name] = true
          add(name, number, oldest, pending)
        end
      end
      if length > 0 and not retries then ungrouped[#ungrouped + 1] = { length, after(key, '-'), met } end
    end
  end
  if #order == 0 then add('', 0, '', 0) end
  -- A group will read from its start any stream that it has not read yet.
  for _, one in ipairs(ungrouped) do
    for _, name in ipairs(order) do
      if not one[3][name] then add(name, one[1], one[2], 0) end
    end
  end
  local row = { there, count(KEYS[at + width]), count(KEYS[at + width + 1]) }
  for _, name in ipairs(order) do
    for _, value in ipairs(rows[name]) do row[#row + 1] = value end
  end
  return row
end

local at = 1
for i = 4, #ARGV do
  local place = ARGV[i]
  if string.sub(place, 1, 1) == '~' then
    found[#found + 1] = alone(KEYS[at], string.sub(place, 2)) or { 0, 0, 0 }
    at = at + 1
  else
    found[#found + 1] = single(at) and alone(KEYS[at], place) or all(at)
    at = at + width + 2
  end
end
return found
