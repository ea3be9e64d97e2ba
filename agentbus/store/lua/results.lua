#!lua flags=allow-oom
-- Acknowledges tasks of one stream that this consumer still holds, each with its result.
-- KEYS: stream, stats, once slot, awaited, recorded outcomes, then the result of each task
-- ARGV: group, consumer, token, the handlers' milliseconds, seconds to keep the results, then for each task its entry's
--       id, ascending, its own id, and its result
-- Returns: {the ids that this consumer no longer holds, 1 if one of the others has dependents}
--@include once
--@include held
--@include settled
local before = already(KEYS[3], ARGV[3])
if before then return before end
local group = ARGV[1]
local mine = held(KEYS[1], group, ARGV[2], ARGV[6], ARGV[#ARGV - 2])
local dependents = redis.call('EXISTS', KEYS[4]) == 1
local stale, done, awaited = {}, {}, 0
for i = 6, #ARGV, 3 do
  local id = ARGV[i]
  if mine[id] then
    redis.call('SET', KEYS[4 + i / 3], ARGV[i + 2], 'EX', ARGV[5])
    done[#done + 1] = id
    if dependents and settled(KEYS[4], KEYS[5], ARGV[i + 1], group, '+') then awaited = 1 end
  else
    stale[#stale + 1] = id
  end
end
if #done > 0 then
  redis.call('XACK', KEYS[1], group, unpack(done))
  redis.pcall('HINCRBY', KEYS[2], 'processed', #done)
  redis.pcall('HINCRBY', KEYS[2], 'busy_ms', ARGV[4])
end
if #stale > 0 then redis.pcall('HINCRBY', KEYS[2], 'stale', #stale) end
return keep(KEYS[3], ARGV[3], { stale, awaited })
