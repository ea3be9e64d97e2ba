#!lua flags=no-writes
-- Sums up what waits in queues and what is held, by group, without payloads of tasks and without consumers.
-- KEYS: for each queue its streams (the last one that of retries, in which nothing is undelivered), its delayed tasks
--       and its dependent tasks
-- ARGV: how many streams a queue has, how many undelivered entries of a stream to count where the server does not know,
--       and how many bytes of them to read for it
-- Returns: {the server's time in ms, then for each queue {1 if it has a stream, delayed, dependent, then for each group
--          (one with an empty name if there is none) name, entries not delivered, id of the oldest of them, pending}}
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

-- waiting(one, group): how many entries of a stream a group was not given, and the id of the oldest.
local function waiting(one, group)
  if one.length == 0 or one.retries or (group and group.lag == 0) then return 0, '' end
  one.first = one.first or after(one.key, '-')
  if not group or newer(one.first, group.delivered) then return one.length, one.first end
  local number = type(group.lag) == 'number' and math.max(0, math.min(group.lag, one.length))
  if not number then
    local last = redis.call('XREVRANGE', one.key, '+', '-', 'COUNT', 1)[1]
    number = undelivered(one.key, one.length, one.first, last and last[1] or '', group.delivered, nil, most, bytes)
  end
  if number == 0 then return 0, '' end
  return number, after(one.key, '(' .. group.delivered)
end

-- read(key, first): a stream with its groups. An empty stream that is not the first of its queue is not asked for them:
-- a queue has several such, and their groups are also those of the first.
local function read(key, first)
  if redis.call('EXISTS', key) == 0 then return nil end
  local length = redis.pcall('XLEN', key)
  if type(length) ~= 'number' then return nil end
  local one = { key = key, length = length, groups = {}, names = {} }
  if length == 0 and not first then return one end
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local named = {}
    for i = 1, #flat, 2 do named[flat[i]] = flat[i + 1] end
    one.groups[named['name']] = { delivered = named['last-delivered-id'], lag = named['lag'], pending = named['pending'] }
    one.names[#one.names + 1] = named['name']
  end
  return one
end

for at = 1, #KEYS, width + 2 do
  local streams, names, known = {}, {}, {}
  for i = at, at + width - 1 do
    local one = read(KEYS[i], i == at)
    if one then
      one.retries = i == at + width - 1
      streams[#streams + 1] = one
      for _, name in ipairs(one.names) do
        if not known[name] then
          known[name] = true
          names[#names + 1] = name
        end
      end
    end
  end
  local row = { #streams > 0 and 1 or 0, count(KEYS[at + width]), count(KEYS[at + width + 1]) }
  if #names == 0 then names[1] = '' end
  for _, name in ipairs(names) do
    local number, oldest, pending = 0, '', 0
    for _, one in ipairs(streams) do
      local group = one.groups[name]
      local left, id = waiting(one, group)
      number, oldest, pending = number + left, older(oldest, id), pending + (group and group.pending or 0)
    end
    for _, value in ipairs({ name, number, oldest, pending }) do row[#row + 1] = value end
  end
  found[#found + 1] = row
end
return found
