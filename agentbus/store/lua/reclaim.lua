#!lua flags=allow-oom
-- Puts aside tasks whose holder sent no heartbeat for its visibility, due at once for any worker.
-- A task that is held by hand needs none, and is due when its visibility ends.
-- KEYS: stream, dead letters, stats, attempts, awaited, recorded outcomes, retries, bell, the visibilities
--       of the group's consumers; the log of attempts, if there is one
-- ARGV: group, consumer, the visibility in ms of holders that have recorded none, id to continue from, how many to examine, the consumer that holds tasks
--       put aside, another one that is left alone (a worker that was frozen may still run its own tasks), the
--       part of a task's id after the entry's id, then the three fields and values of a tombstone, the queue first;
--       the bound of the log of attempts
-- Returns: {id to continue from ('' at the end), how many were put aside, how many were lost}
--@include json
--@include record_outcome
--@include replace
--@include put_aside_suspect
--@include cut_off
local otherwise, visible = tonumber(ARGV[3]), {}
local least, recorded = otherwise, redis.pcall('HGETALL', KEYS[9])
for i = 1, #recorded, 2 do
  local visibility = tonumber(string.match(recorded[i + 1], '^%d+$'))
  if visibility then
    visible[recorded[i]] = visibility
    least = math.min(least, visibility)
  end
end
local page = redis.call('XPENDING', KEYS[1], ARGV[1], 'IDLE', string.format('%d', least), ARGV[4], '+', ARGV[5])
local taken, lost, last, unfinished = 0, 0, '', {}
for _, pending in ipairs(page) do
  last = pending[1]
  local by_hand = string.sub(pending[2], 1, 5) == 'hand:' and type(redis.pcall('ZSCORE', KEYS[7], last)) == 'string'
  local due = pending[3] >= (visible[pending[2]] or otherwise)
  if due and pending[2] ~= ARGV[6] and pending[2] ~= ARGV[7] and not by_hand then
    if KEYS[10] then add_cut_off(unfinished, KEYS[1], KEYS[4], last, pending[2], ARGV[8]) end
    if put_aside_suspect(KEYS[1], ARGV[1], ARGV[6], KEYS[4], KEYS[7], last, pending[2]) then
      taken = taken + 1
    else
      lost = lost + 1
      redis.call('XACK', KEYS[1], ARGV[1], last)
      redis.pcall('HDEL', KEYS[4], last)
      redis.call('XADD', KEYS[2], '*', 'original_id', last, unpack(ARGV, 9, 14))
      record_outcome(KEYS[5], KEYS[6], last .. ARGV[8], ARGV[1], '!it was trimmed away before it was done')
    end
  end
end
if KEYS[10] then log_cut_off(unfinished, KEYS[10], ARGV[15], ARGV[10], ARGV[1], ARGV[8]) end
if lost > 0 then redis.pcall('HINCRBY', KEYS[3], 'lost', lost) end
if taken > 0 then
  redis.pcall('HINCRBY', KEYS[3], 'reclaimed', taken)
  replace(KEYS[8], 'XADD', 'MAXLEN', 1, '*', 'due', '0')
end
return { #page < tonumber(ARGV[5]) and '' or '(' .. last, taken, lost }
