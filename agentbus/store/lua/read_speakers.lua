#!lua flags=no-writes
-- Reads who has spoken on the channel since an id, whatever program wrote it.
-- KEYS: channel
-- ARGV: the id
-- Returns: the agents
--@include topic_and_agent
local speakers, reply, from = {}, {}, '+'
repeat
  local page = redis.call('XREVRANGE', KEYS[1], from, ARGV[1], 'COUNT', 1000)
  for _, entry in ipairs(page) do
    local _, agent = topic_and_agent(entry[2])
    if not speakers[agent] then reply[#reply + 1] = agent end
    speakers[agent], from = true, '(' .. entry[1]
  end
until #page < 1000
return reply
