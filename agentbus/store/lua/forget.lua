#!lua flags=allow-oom
-- Removes a note and its tag entries, and appends a notice to the channel.
-- KEYS: jot, jots, channel, agents, topics, once slot, then the zset of each tag it has
-- ARGV: title, agent, the tags that the caller expects, bound, token, message
-- Returns: {'forgotten', entry id}, {'absent'}, or {'tags', its present tags} if they differ
--@include json
--@include once
--@include say
local before = already(KEYS[6], ARGV[5])
if before then return before end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('ZREM', KEYS[2], ARGV[1])
  return { 'absent' }
end
local has = redis.call('HGET', KEYS[1], 'tags') or ''
if has ~= ARGV[3] then return { 'tags', has } end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[1])
for i = 7, #KEYS do redis.call('ZREM', KEYS[i], ARGV[1]) end
local id = say(KEYS[3], KEYS[4], KEYS[5], ARGV[4], ARGV[2], ARGV[6], 'knowledge',
  'event', 'forgotten', 'note', ARGV[1])
return keep(KEYS[6], ARGV[5], { 'forgotten', id })
