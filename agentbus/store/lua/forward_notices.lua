#!lua
-- Appends notices from the channel of another shard, each once, in order.
-- KEYS: the last ids of outboxes, channel, agents, topics
-- ARGV: the outbox's name, the bound of the channel, then for each entry its id, number of words that follow, its
--       fields and values, of which the first are agent and message, and then the topic, if it has one
-- Returns: number of notices that were not appended before
--@include ids
--@include say
local fresh, at = 0, 3
local last = redis.call('HGET', KEYS[1], ARGV[1]) or '0-0'
while ARGV[at] do
  local id, count = ARGV[at], tonumber(ARGV[at + 1])
  if newer(id, last) then
    if count >= 4 and ARGV[at + 2] == 'agent_id' and ARGV[at + 4] == 'message' then
      local topic = count >= 6 and ARGV[at + 6] == 'topic'
      local rest = at + (topic and 8 or 6)
      say(KEYS[2], KEYS[3], KEYS[4], ARGV[2], ARGV[at + 3], ARGV[at + 5], topic and ARGV[at + 7] or '',
        unpack(ARGV, rest, at + 1 + count))
    end
    last, fresh = id, fresh + 1
  end
  at = at + 2 + count
end
if fresh > 0 then redis.call('HSET', KEYS[1], ARGV[1], last) end
return fresh
