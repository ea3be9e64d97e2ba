#!lua flags=allow-oom
-- Puts tasks of one stream aside until they are due again; they stay pending, so that they are not trimmed.
-- KEYS: stream, stats, attempts, retries, once slot, cancelled, then the record of the runs of each task
-- ARGV: group, consumer, the consumer that holds tasks put aside, token, then for each task its entry's id, ascending, its
--       delay in ms, the attempts so far, its place among the cancelled, seconds to keep the record of its runs, the
--       record of this one ('' for none), its milliseconds
-- Returns: for each 1, 0 if this consumer no longer holds it, or 2 if it was cancelled and must be settled as that
--@include once
--@include held
--@include owner
--@include replace
--@include runs
local before = already(KEYS[5], ARGV[4])
if before then return before end
local call, words = redis.call, 7
local mine
if string.find(ARGV[2], '\n', 1, true) then
  -- A task that is held by hand is settled alone.
  mine = { [ARGV[5]] = owns(KEYS[1], ARGV[1], ARGV[2], ARGV[5], KEYS[3]) }
else
  mine = held(KEYS[1], ARGV[1], ARGV[2], ARGV[5], ARGV[#ARGV - words + 1])
end
local now, cancelled = clock(), call('EXISTS', KEYS[6]) == 1
local reply, aside, attempts, dues, stale = {}, {}, {}, {}, 0
for n = 1, (#ARGV - 4) / words do
  local at = 5 + (n - 1) * words
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
    ran(KEYS[6 + n], ARGV[at + 4], ARGV[at + 5], ARGV[at + 6], now)
  end
end
if #aside > 0 then
  replace(KEYS[3], 'HSET', unpack(attempts))
  replace(KEYS[4], 'ZADD', unpack(dues))
  redis.pcall('HINCRBY', KEYS[2], 'retried', #aside)
  aside[#aside + 1] = 'JUSTID'
  call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, unpack(aside))
end
if stale > 0 then redis.pcall('HINCRBY', KEYS[2], 'stale', stale) end
return keep(KEYS[5], ARGV[4], reply)
