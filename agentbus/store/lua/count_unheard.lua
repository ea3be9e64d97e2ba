#!lua flags=no-writes
-- Counts the messages past a reader's cursors.
-- KEYS: channel, cursor of all topics, at which a topic without one starts, one cursor for each topic (or again the one
--       of all topics)
-- ARGV: agent to leave out ('' for none), then for each cursor its topic ('' for all)
-- Returns: {how many, id of the first ('' if none), channel's last id, how many entries it has ever had, now in ms},
--          {'bad', cursor key, value}, or {'ahead', cursor key, value, channel's last id}
--@include ids
--@include topic_and_agent
--@include stream
local info = stream(KEYS[1])
local after, from = {}, nil
for i = 3, #KEYS do
  local key, at = KEYS[i], redis.pcall('GET', KEYS[i])
  if not at then key, at = KEYS[2], redis.pcall('GET', KEYS[2]) or '0-0' end
  if type(at) == 'table' then return { 'bad', key, 'another type' } end
  if not (is_id(at) or is_id(at .. '-0')) then return { 'bad', key, at } end
  if newer(at, info['last-generated-id']) then return { 'ahead', key, at, info['last-generated-id'] } end
  after[ARGV[i - 1]] = at
  if not from or newer(from, at) then from = at end
end
local count, first = 0, ''
repeat
  local page = redis.call('XRANGE', KEYS[1], '(' .. from, '+', 'COUNT', 1000)
  for _, entry in ipairs(page) do
    local id = entry[1]
    local topic, agent = topic_and_agent(entry[2])
    local at = after[''] or (topic ~= '' and after[topic])
    if at and newer(id, at) and (ARGV[1] == '' or agent ~= ARGV[1]) then
      if count == 0 then first = id end
      count = count + 1
    end
    from = id
  end
until #page < 1000
local time = redis.call('TIME')
local now = string.format('%d', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
return { count, first, info['last-generated-id'], info['entries-added'], now }
