#!lua flags=allow-oom
-- Defers tasks of one stream until they are due again; they remain pending, so that they are not trimmed.
-- KEYS: stream, stats, attempts, retries, once slot, cancelled, then the record of the runs of each task
-- ARGV: group, consumer, the consumer that holds deferred tasks, token, number of tasks that follow, then for each
--       its entry's id, ascending, its delay in ms, the attempts so far, its place among the cancelled, seconds to
--       keep the record of its runs, the record of this one ('' for none), its milliseconds
-- With a log of attempts: its key is the last one, and its words are the last ones
-- Returns: for each 1, 0 if this consumer no longer holds it, or 2 if it was cancelled and must be settled as that
--@include json
--@include once
--@include held
--@include owner
--@include replace
--@include runs
--@include log_attempts
local before = already(KEYS[5], ARGV[4])
if before then return before end
local call, words, count, without = redis.call, 7, tonumber(ARGV[5]), {}
local mine
if string.find(ARGV[2], '\n', 1, true) then
  -- A task held by hand is settled separately.
  mine = { [ARGV[6]] = owns(KEYS[1], ARGV[1], ARGV[2], ARGV[6], KEYS[3]) }
else
  mine = held(KEYS[1], ARGV[1], ARGV[2], ARGV[6], ARGV[6 + (count - 1) * words])
end
local now, cancelled = clock(), call('EXISTS', KEYS[6]) == 1
local reply, aside, attempts, dues, stale = {}, {}, {}, {}, 0
for n = 1, count do
  local at = 6 + (n - 1) * words
  local id = ARGV[at]
  if not mine[id] then
    reply[n], stale = 0, stale + 1
  elseif cancelled and type(redis.pcall('HGET', KEYS[6], ARGV[at + 3])) == 'string' then
    reply[n] = 2
  else
    reply[n], aside[#aside + 1] = 1, id
    local last = 2 * #aside
    attempts[last - 1], attempts[last] = id, ARGV[at + 2]
    dues[last - 1], dues[last] = string.format('%d', now + tonumber(ARGV[at + 1])), id
    record_run_end(KEYS[6 + n], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6], now)
  end
  if reply[n] ~= 1 then without[#without + 1] = n - 1 end
end
if #aside > 0 then
  replace(KEYS[3], 'HSET', unpack(attempts))
  replace(KEYS[4], 'ZADD', unpack(dues))
  redis.pcall('HINCRBY', KEYS[2], 'retried', #aside)
  aside[#aside + 1] = 'JUSTID'
  call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, unpack(aside))
end
if stale > 0 then redis.pcall('HINCRBY', KEYS[2], 'stale', stale) end
if ARGV[6 + count * words] then log_attempts(6 + count * words, count, without) end
return keep(KEYS[5], ARGV[4], reply)
