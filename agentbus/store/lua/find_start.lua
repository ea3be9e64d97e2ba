#!lua flags=no-writes
-- Finds where a reader without a cursor starts.
-- A topic starts at the cursor of all topics, up to which its messages were read; any other reader
-- starts at the newest messages.
-- KEYS: channel, cursor of all topics, one cursor for each topic (or again the one of all topics)
-- ARGV: how many of the newest messages ('' = all of them), agent to leave out ('' for none), then for each cursor
--       its topic ('' for all)
-- Returns: {id that the newest messages come after, how many older ones are skipped, id of the oldest of these ('' if
--          none)}, then for each cursor {id to start after ('' if the cursor exists), skipped, id of the oldest of
--          these}; what is skipped before the newest is counted once, for all its cursors together
--@include ids
--@include topic_and_agent
local newest, omit = tonumber(ARGV[1]), ARGV[2]
local main = redis.call('GET', KEYS[2])
local starts, joins, begins, wanted = {}, {}, {}, false
for i = 3, #KEYS do
  local topic = ARGV[i]
  if redis.call('EXISTS', KEYS[i]) == 1 then
    starts[i] = { '', 0, '' }
  elseif topic ~= '' and main then
    starts[i] = { main, 0, '' }
    joins[topic] = starts[i]
  else
    starts[i] = { '0-0', 0, '' }
    begins[topic] = newest
    wanted = wanted or newest
  end
end
local reply = { { '0-0', 0, '' } }
if wanted or next(joins) then
  local found, at, last = 0, '+', nil
  repeat
    local page = redis.call('XREVRANGE', KEYS[1], at, '-', 'COUNT', 1000)
    for _, entry in ipairs(page) do
      local id = entry[1]
      local topic, agent = topic_and_agent(entry[2])
      if found == newest and not last then last = id end
      if omit == '' or agent ~= omit then
        local join = joins[topic]
        if join and not newer(id, main) then join[2], join[3] = join[2] + 1, id end
        if begins[''] or (topic ~= '' and begins[topic]) then
          found = found + 1
          if last then reply[1][2], reply[1][3] = reply[1][2] + 1, id end
        end
      end
    end
    if #page > 0 then at = '(' .. page[#page][1] end
  until #page < 1000
  if last then reply[1][1] = last end
end
for i = 3, #KEYS do reply[#reply + 1] = starts[i] end
return reply
