#!lua flags=allow-oom
-- Acknowledges all pending entries of this consumer, if they are exactly its done tasks.
-- No ids are needed.
-- KEYS: stats, once slot, awaited, then the streams of the done tasks; with an attempt log, last
--       its key
-- ARGV: group, consumer, token, the handlers' milliseconds, then for each stream the number of done
--       tasks, and the first and last id; with an attempt log, last its words
-- Returns: {1, or 0 if the consumer holds other tasks, lacks some, or some may have dependents, so
--          that nothing was done; number of consumers with pending entries in the first stream}
--@include json
--@include once
--@include log_attempts
local before = already(KEYS[2], ARGV[3])
if before then return before end
local call, group, consumer, holders = redis.call, ARGV[1], ARGV[2], 0
if call('EXISTS', KEYS[3]) == 1 then return { 0, 0 } end
local last = #ARGV > 4 + 3 * (#KEYS - 3) and #KEYS - 1 or #KEYS
for i = 4, last do
  local at, all = 3 * i - 7, false
  local pending = redis.pcall('XPENDING', KEYS[i], group)
  for n, of in ipairs(pending[4] or {}) do
    all = all or of[1] == consumer and tostring(of[2]) == ARGV[at]
    if i == 4 then holders = n end
  end
  -- A copy of this request may arrive after the consumer has read an equal number of new tasks:
  -- check both ids.
  for n = at + 1, at + 2 do
    all = all and #call('XPENDING', KEYS[i], group, ARGV[n], ARGV[n], 1, consumer) == 1
  end
  if not all then return { 0, holders } end
end
local done = 0
for i = 4, last do
  -- The deletion of the consumer removes its pending entries; its next read creates it again.
  done = done + call('XGROUP', 'DELCONSUMER', KEYS[i], group, consumer)
end
redis.pcall('HINCRBY', KEYS[1], 'processed', done)
redis.pcall('HINCRBY', KEYS[1], 'busy_ms', ARGV[4])
if last < #KEYS then log_attempts(5 + 3 * (last - 3), done, {}) end
return keep(KEYS[2], ARGV[3], { 1, holders })
