#!lua flags=allow-oom
-- Dead-letters a dependent of a dead task; its own dependents follow later.
-- KEYS: recorded outcomes, awaited (of the buried task's queue), after, its bodies, dead letters, result, stats,
--       awaited (of its queue), then three for each notification
-- ARGV: the record's field, the prefix of its members, the member, the outcome to record for the dependents of this
--       one, the error, seconds to keep it (0: never), a counter to raise ('' for none), number of words that follow,
--       fields and values of the letter, then the words of each notification
-- Returns: the dead letter's id, or '' if the dependent no longer waits
--@include json
--@include say
--@include append_notifications
--@include forget_outcome
--@include decode_task
local id, letter = string.match(ARGV[3], '\n%d%d([^\n]*)$'), ''
-- Since the caller has read it, the server may have lost the burial: the task then runs again.
local lost = string.sub(redis.call('HGET', KEYS[1], ARGV[1]) or '+', 1, 1) == '+'
if not lost and redis.call('ZREM', KEYS[2], ARGV[3]) == 1 and redis.call('ZREM', KEYS[3], id) == 1 then
  local found = redis.call('HGET', KEYS[4], id)
  local task = found and decode_task(found, { low = 1, normal = 1, high = 1, critical = 1 }, 5) or {}
  redis.call('HDEL', KEYS[4], id, id .. '\n')
  local words, count = { 'id', id }, tonumber(ARGV[8])
  for i = 6, #task do words[#words + 1] = task[i] end
  for i = 9, 8 + count do words[#words + 1] = ARGV[i] end
  letter = redis.call('XADD', KEYS[5], '*', unpack(words))
  redis.pcall('HINCRBY', KEYS[7], 'dead', 1)
  if ARGV[6] ~= '0' then redis.call('SET', KEYS[6], '!' .. letter .. ' ' .. ARGV[5], 'NX', 'EX', ARGV[6]) end
  if ARGV[7] ~= '' then redis.pcall('HINCRBY', KEYS[7], ARGV[7], 1) end
  local others = redis.call('ZRANGEBYLEX', KEYS[8], '[' .. id .. '\n', '(' .. id .. '\11', 'LIMIT', 0, 1)
  if #others > 0 then redis.call('HSETNX', KEYS[1], id .. '\n', ARGV[4]) end
  append_notifications(KEYS[7], 9, 9 + count)
end
forget_outcome(KEYS[1], KEYS[2], ARGV[1], ARGV[2])
return letter
