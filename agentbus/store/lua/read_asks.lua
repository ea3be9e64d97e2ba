#!lua flags=no-writes
-- Reads the asks that an agent has not answered, and its own asks that were not answered.
-- KEYS: inbox, answers, the agent's asks
-- Returns: {now in ms, {for each that it has not answered its id and the sender}, {ids of its asks}}
--@include asks
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
return { string.format('%d', now), asks_to_answer(KEYS[1], KEYS[2], now), asks_without_answer(KEYS[3], now) }
