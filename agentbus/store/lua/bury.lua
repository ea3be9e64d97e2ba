#!lua flags=allow-oom
-- Moves a task to the dead letters: appends it there, acknowledges it, and appends its notifications.
-- KEYS: stream, dead letters, stats, attempts, retries, result, awaited, recorded outcomes, once slot, runs,
--       then three for each notification
-- ARGV: group, consumer, id, the marker to keep in place of the result, seconds to keep it (0: never) with '@' and
--       the letter's queue if it is not that of the id, a counter to raise ('' for none), the task's id, token,
--       seconds to keep the record of its runs, the record of this one, its milliseconds, number of words that
--       follow, fields and values of the letter, then the words of each notification
-- Returns: 1, 2 if it has dependents, or 0 if this consumer no longer holds it
--@include json
--@include once
--@include owner
--@include say
--@include append_notifications
--@include record_outcome
--@include has_group
--@include record_unrouted
--@include runs
local before = already(KEYS[9], ARGV[8])
if before then return before end
if not owns(KEYS[1], ARGV[1], ARGV[2], ARGV[3], KEYS[4]) then
  redis.pcall('HINCRBY', KEYS[3], 'stale', 1)
  return 0
end
local entry = redis.call('XRANGE', KEYS[1], ARGV[3], ARGV[3])[1]
local letter = entry and entry[2] or {}
if #letter > 7000 then
  -- Lua's stack holds about 8,000 words, so keep another program's huge entry as a single field.
  local named = {}
  for i = 1, #letter, 2 do named[letter[i]] = letter[i + 1] end
  letter = { 'payload', cjson.encode(named) }
end
local words = tonumber(ARGV[12])
for i = 13, 12 + words do letter[#letter + 1] = ARGV[i] end
local id = redis.call('XADD', KEYS[2], '*', unpack(letter))
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
redis.pcall('HDEL', KEYS[4], ARGV[3])
redis.pcall('ZREM', KEYS[5], ARGV[3])
redis.pcall('HINCRBY', KEYS[3], 'dead', 1)
-- The marker cannot be confused with a result: no JSON starts with it.
local seconds, where = string.match(ARGV[5], '^(%d+)(.*)$')
if seconds ~= '0' then redis.call('SET', KEYS[6], '!' .. id .. where .. ' ' .. ARGV[4], 'EX', seconds) end
if ARGV[6] ~= '' then redis.pcall('HINCRBY', KEYS[3], ARGV[6], 1) end
delete_steps(KEYS[10], ARGV[9])
record_run_end(KEYS[10], ARGV[9], ARGV[10], ARGV[11], clock())
append_notifications(KEYS[3], 11, 13 + words)
local awaited = record_outcome(KEYS[7], KEYS[8], ARGV[7], ARGV[1], '!' .. ARGV[4])
if ARGV[1] == 'router' then awaited = record_unrouted(KEYS[1], KEYS[7], KEYS[8], ARGV[7], '!' .. ARGV[4]) or awaited end
return keep(KEYS[9], ARGV[8], awaited and 2 or 1)
