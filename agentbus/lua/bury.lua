#!lua flags=allow-oom
-- Moves a task to the dead letters: append there, acknowledge here.
-- KEYS: stream, dead letters, stats, attempts, retries
-- ARGV: group, consumer, id, then fields and values that say why
-- Returns: the letter's id, or '' if the task is not this consumer's any longer
--@include owner
if not owns(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) then
  redis.call('HINCRBY', KEYS[3], 'stale', 1)
  return ''
end
local entry = redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3])[1]
local letter = entry and entry[2] or {}
if #letter > 7000 then
  -- Lua's stack holds about 8,000 words: another program's huge entry is kept as one field.
  local named = {}
  for i = 1, #letter, 2 do named[letter[i]] = letter[i + 1] end
  letter = { 'payload', cjson.encode(named) }
end
for i = 4, #ARGV do letter[#letter + 1] = ARGV[i] end
local id = redis.call('XADD', KEYS[2], '*', unpack(letter))
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
redis.call('HDEL', KEYS[4], ARGV[3])
redis.call('ZREM', KEYS[5], ARGV[3])
redis.call('HINCRBY', KEYS[3], 'dead', 1)
return id
