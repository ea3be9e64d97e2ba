#!lua
-- Writes a worker's counts to the metrics stream, and adds them to the counters, exactly once.
-- KEYS: metrics, stats, the group's stats, once slot, queues
-- ARGV: token, bound of the metrics, queue, how many of the queue's counters follow, their names and numbers, how
--       many of the group's, theirs, then the entry's fields and values
-- Returns: {entry's id}
--@include json
--@include once
--@include count_refused
local before = already(KEYS[4], ARGV[1])
if before then return before end
local last = 4
for _ = 1, 2 do last = last + 2 * tonumber(ARGV[last]) + 1 end
-- Append first, since only this can be refused: corrupted counters must not cause a second entry.
local id = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', unpack(ARGV, last))
local at = 4
for _, counters in ipairs({ KEYS[2], KEYS[3] }) do
  local count = tonumber(ARGV[at])
  for i = at + 1, at + 2 * count, 2 do redis.pcall('HINCRBY', counters, ARGV[i], ARGV[i + 1]) end
  at = at + 2 * count + 1
end
redis.pcall('ZADD', KEYS[5], 'NX', string.match(id, '^%d+'), ARGV[3])
-- Report the last refusals of publishers, which may not have been reported yet.
report_refused(KEYS[1], KEYS[2], ARGV[2], ARGV[3], 0)
return keep(KEYS[4], ARGV[1], { id })
