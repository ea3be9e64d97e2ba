#!lua flags=allow-oom
-- Moves a task to the dead letters: append there, acknowledge here; and tells those who asked to be told.
-- KEYS: stream, dead letters, stats, attempts, retries, result, then three for each who is to be told
-- ARGV: group, consumer, id, what to keep in the result's place, seconds to keep it (0: never), a counter to raise ('' for
--       none), how many words follow, fields and values that say why, then the words for each who is to be told
-- Returns: the letter's id, or '' if the task is not this consumer's any longer
--@include owner
--@include tell
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
local words = tonumber(ARGV[7])
for i = 8, 7 + words do letter[#letter + 1] = ARGV[i] end
local id = redis.call('XADD', KEYS[2], '*', unpack(letter))
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
redis.call('HDEL', KEYS[4], ARGV[3])
redis.call('ZREM', KEYS[5], ARGV[3])
redis.call('HINCRBY', KEYS[3], 'dead', 1)
-- No result is JSON that starts so.
if ARGV[5] ~= '0' then redis.call('SET', KEYS[6], '!' .. id .. ' ' .. ARGV[4], 'EX', ARGV[5]) end
if ARGV[6] ~= '' then redis.call('HINCRBY', KEYS[3], ARGV[6], 1) end
tell(KEYS[3], 7, 8 + words)
return id
