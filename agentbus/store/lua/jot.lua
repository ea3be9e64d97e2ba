#!lua
-- Writes a note, replaces its tags, and appends a notice to the channel.
-- KEYS: jot, jots, channel, agents, topics, once slot, then the zsets of its new tags and of its old ones
-- ARGV: title, value, author, tags joined by ',', the tags that the caller expects, 1 to keep an
--       existing note, bound, token, message, how many of the tag keys are new tags; the rest are old ones
-- Returns: {'written', unix time, entry id}, {'exists'}, or {'tags', its present tags} if they are neither
--       the expected nor the new ones
--@include json
--@include once
--@include say
local before = already(KEYS[6], ARGV[8])
if before then return before end
local has = redis.call('HGET', KEYS[1], 'tags') or ''
if ARGV[6] == '1' and redis.call('EXISTS', KEYS[1]) == 1 then return { 'exists' } end
if has ~= ARGV[5] and has ~= ARGV[4] then return { 'tags', has } end
for i = 7, #KEYS do
  local kind = redis.call('TYPE', KEYS[i])['ok']
  if kind ~= 'zset' and kind ~= 'none' then
    return redis.error_reply("WRONGTYPE the key '" .. KEYS[i] .. "' is a " .. kind .. ', and should be a zset: another program wrote it')
  end
end
-- Write the notice first: only this line and the next can still fail.
local id = say(KEYS[3], KEYS[4], KEYS[5], ARGV[7], ARGV[3], ARGV[9], 'knowledge',
  'event', 'jotted', 'note', ARGV[1])
local time = redis.call('TIME')
local at = time[1] .. '.' .. string.sub('000000' .. time[2], -6)
redis.call('ZADD', KEYS[2], at, ARGV[1])
local new = tonumber(ARGV[10])
for i = 7 + new, #KEYS do redis.call('ZREM', KEYS[i], ARGV[1]) end
for i = 7, 6 + new do redis.call('ZADD', KEYS[i], at, ARGV[1]) end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'value', ARGV[2], 'author', ARGV[3], 'timestamp', time[1], 'tags', ARGV[4])
return keep(KEYS[6], ARGV[8], { 'written', time[1], id })
