#!lua
-- Appends a slice of a Spark sink's rows to the channel as messages, unless it was appended before.
-- KEYS: channel, agents, topics, the sink's record
-- ARGV: the batch, seconds to keep the record, the digest of the slice, bound, agent, topic, then the messages
-- Returns: {'done'}
--@include say
--@include slices
if recorded(KEYS[4], ARGV[3]) then return { 'done' } end
local id = say(KEYS[1], KEYS[2], KEYS[3], ARGV[4], ARGV[5], ARGV[7], ARGV[6])
for i = 8, #ARGV do
  id = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], '*', 'agent_id', ARGV[5], 'message', ARGV[i], 'topic', ARGV[6])
end
record(KEYS[4], ARGV[1], ARGV[3], ARGV[2])
return { 'done' }
