#!lua
-- Appends a message to the channel.
-- KEYS: channel, agents, topics, once slot
-- ARGV: agent, message, topic ('' for none), bound, token, then further fields and values
-- Returns: {entry id}
--@include json
--@include once
--@include say
local before = already(KEYS[4], ARGV[5])
if before then return before end
local id = say(KEYS[1], KEYS[2], KEYS[3], ARGV[4], ARGV[1], ARGV[2], ARGV[3], unpack(ARGV, 6))
return keep(KEYS[4], ARGV[5], { id })
