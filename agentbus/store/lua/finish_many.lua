#!lua flags=allow-oom
-- Acknowledges tasks of one stream that this consumer still holds, each with its result.
-- KEYS: stream, stats, once slot, awaited, recorded outcomes, attempts, then the result of each
--       task, then the record of each task's runs, if it is kept; with an attempt log, last its key
-- ARGV: group, consumer, token, the handlers' milliseconds, seconds to keep the results, seconds to
--       keep the records ('' for first deliveries, which are not recorded), number of tasks, then
--       for each its entry's id, ascending, its task id, its result ('' to keep none), and for a
--       redelivered task the record of this run and its milliseconds; with an attempt log, last its
--       words
-- Returns: {ids that this consumer no longer holds, 1 if one of the other tasks has dependents}
--@include json
--@include once
--@include held
--@include record_outcome
--@include runs
--@include log_attempts
local before = already(KEYS[3], ARGV[3])
if before then return before end
local group, kept = ARGV[1], ARGV[6]
local words = kept == '' and 3 or 5
local count = tonumber(ARGV[7])
local mine = held(KEYS[1], group, ARGV[2], ARGV[8], ARGV[8 + (count - 1) * words])
local dependents = redis.call('EXISTS', KEYS[4]) == 1
local stale, done, awaited, without = {}, {}, 0, {}
local now = kept ~= '' and clock()
for n = 1, count do
  local at = 8 + (n - 1) * words
  local id = ARGV[at]
  if mine[id] then
    if ARGV[at + 2] ~= '' then redis.call('SET', KEYS[6 + n], ARGV[at + 2], 'EX', ARGV[5]) end
    done[#done + 1] = id
    if kept ~= '' then
      delete_steps(KEYS[6 + count + n], kept)
      record_run_end(KEYS[6 + count + n], kept, ARGV[at + 3], ARGV[at + 4], now)
    end
    if dependents and record_outcome(KEYS[4], KEYS[5], ARGV[at + 1], group, '+') then awaited = 1 end
  else
    stale[#stale + 1], without[#without + 1] = id, n - 1
  end
end
if #done > 0 then
  redis.call('XACK', KEYS[1], group, unpack(done))
  if kept ~= '' then redis.call('HDEL', KEYS[6], unpack(done)) end
  redis.pcall('HINCRBY', KEYS[2], 'processed', #done)
  redis.pcall('HINCRBY', KEYS[2], 'busy_ms', ARGV[4])
end
if #stale > 0 then redis.pcall('HINCRBY', KEYS[2], 'stale', #stale) end
if ARGV[8 + count * words] then log_attempts(8 + count * words, count, without) end
return keep(KEYS[3], ARGV[3], { stale, awaited })
