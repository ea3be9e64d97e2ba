#!lua flags=allow-oom
-- Defers the tasks of a dead worker, due at once for others, and deletes its consumer once it holds none.
-- KEYS: beats, stream, retries, dead letters, stats, attempts; the attempt log, if there is one
-- ARGV: worker, group, required silence in ms, the consumer that holds deferred tasks, limit, then
--       the three fields and values of a tombstone, the queue first; the bound of the attempt log,
--       the suffix of task ids
-- Returns: {number of deferred tasks, number of lost tasks, 1 if the worker holds more}, or {} if
--          the worker is alive
--@include json
--@include replace
--@include put_aside_suspect
--@include cut_off
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local seen = redis.call('ZSCORE', KEYS[1], ARGV[1])
if seen and tonumber(seen) > now - tonumber(ARGV[3]) then return {} end
if redis.call('EXISTS', KEYS[2]) == 0 then return { 0, 0, 0 } end
local held = redis.pcall('XPENDING', KEYS[2], ARGV[2], '-', '+', ARGV[5], ARGV[1])
-- If the group does not exist, the worker holds nothing.
if held.err then return { 0, 0, 0 } end
local moved, lost, unfinished = 0, 0, {}
for _, entry in ipairs(held) do
  local id = entry[1]
  if KEYS[7] then add_cut_off(unfinished, KEYS[2], KEYS[6], id, ARGV[1], ARGV[13]) end
  if put_aside_suspect(KEYS[2], ARGV[2], ARGV[4], KEYS[6], KEYS[3], id, ARGV[1]) then
    moved = moved + 1
  else
    redis.call('XACK', KEYS[2], ARGV[2], id)
    redis.pcall('HDEL', KEYS[6], id)
    redis.call('XADD', KEYS[4], '*', 'original_id', id, unpack(ARGV, 6, 11))
    lost = lost + 1
  end
end
if KEYS[7] then log_cut_off(unfinished, KEYS[7], ARGV[12], ARGV[7], ARGV[2], ARGV[13]) end
if moved > 0 then redis.pcall('HINCRBY', KEYS[5], 'reclaimed', moved) end
if lost > 0 then redis.pcall('HINCRBY', KEYS[5], 'lost', lost) end
-- Delete the consumer only when it has no pending entries, which would be lost with it.
if #redis.call('XPENDING', KEYS[2], ARGV[2], '-', '+', 1, ARGV[1]) > 0 then return { moved, lost, 1 } end
redis.call('XGROUP', 'DELCONSUMER', KEYS[2], ARGV[2], ARGV[1])
return { moved, lost, 0 }
