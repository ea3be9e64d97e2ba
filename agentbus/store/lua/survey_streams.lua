#!lua flags=no-writes
-- Surveys streams of tasks in one step: the position, backlog and pending tasks of each group.
-- KEYS: streams
-- ARGV: the consumer that holds deferred tasks, how many pending entries to examine for the longest held, how many
--       undelivered ones to count where the server does not know, and how many bytes of them to read for it
-- Returns: {the server's time in ms, then for each stream: {length (-1 if there is none), first id, groups}}, of
--          each group {name, last delivered id, entries not delivered, 1 if that is exact, id of the oldest of them,
--          pending, how many of those are put aside, longest idle time of the others in ms (-1: none),
--          consumers as {name, pending, idle in ms}}
--@include ids
--@include undelivered
local time = redis.call('TIME')
local found = { tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) }

local function named(flat)
  local pairs = {}
  for i = 1, #flat, 2 do pairs[flat[i]] = flat[i + 1] end
  return pairs
end

local function survey(key, length, first, last, info)
  local name, delivered = info['name'], info['last-delivered-id']
  local backlog, exact = undelivered(key, length, first, last, delivered, info['lag'], tonumber(ARGV[3]), tonumber(ARGV[4]))
  local oldest = ''
  if backlog > 0 then
    local next = redis.call('XRANGE', key, '(' .. delivered, '+', 'COUNT', 1)[1]
    oldest = next and next[1] or ''
  end
  local consumers, aside, idle = {}, 0, -1
  for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', key, name)) do
    local consumer = named(flat)
    if consumer['name'] == ARGV[1] then
      aside = consumer['pending']
    else
      consumers[#consumers + 1] = { consumer['name'], consumer['pending'], consumer['idle'] }
    end
  end
  if info['pending'] > aside then
    for _, held in ipairs(redis.call('XPENDING', key, name, '-', '+', ARGV[2])) do
      if held[2] ~= ARGV[1] and held[3] > idle then idle = held[3] end
    end
  end
  return { name, delivered, backlog, exact, oldest, info['pending'], aside, idle, consumers }
end

for _, key in ipairs(KEYS) do
  if redis.call('TYPE', key)['ok'] == 'stream' then
    local length = redis.call('XLEN', key)
    -- Skip empty streams; most streams of a queue are empty.
    local first = length > 0 and redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
    local last = length > 0 and redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
    first, last = first and first[1] or '', last and last[1] or ''
    local groups = {}
    for _, flat in ipairs(redis.call('XINFO', 'GROUPS', key)) do
      groups[#groups + 1] = survey(key, length, first, last, named(flat))
    end
    found[#found + 1] = { length, first, groups }
  else
    found[#found + 1] = { -1, '', {} }
  end
end
return found
