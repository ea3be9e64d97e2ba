#!lua
-- Appends a slice of a Spark sink's rows to a queue as tasks, all or none, unless it was appended before.
-- KEYS: stream, queues, stats, the sink's record, order, metrics, readers, the retry stream, then the seen key of
--       each task if they have dedup keys
-- ARGV: the batch, seconds to keep the record, the digest of the slice, 1 to answer 'full' at once if tasks stay behind an
--       unfinished one, queue, bound, 'wait', 'refuse' (which is counted) or 'trim', dedup window in seconds, task id's
--       suffix, the agent, then for each task its payload, the rest of its envelope ('': none), its ordering key ('': none)
-- Returns: {'done'}; or {'full', …} as publish does
--@include ids
--@include lowest_of_readers
--@include undelivered
--@include lowest_needed
--@include order
--@include count_refused
--@include slices
local call, KEYS, ARGV = redis.call, KEYS, ARGV
if recorded(KEYS[4], ARGV[3]) then return { 'done' } end
local stream, bound, window, suffix, agent = KEYS[1], tonumber(ARGV[6]), ARGV[8], ARGV[9], ARGV[10]
local count = (#ARGV - 10) / 3
local keyed, fresh, seen, made = #KEYS > 8, count, {}, {}
if keyed then
  seen = call('MGET', unpack(KEYS, 9))
  for n = 1, count do
    if seen[n] then fresh = fresh - 1 end
  end
end
if fresh > 0 then
  local fits, undone, blocking, oldest = room(stream, bound, fresh, KEYS[7], KEYS[8])
  if not fits then
    if ARGV[7] ~= 'trim' or (ARGV[4] == '1' and oldest ~= '') then
      if ARGV[7] == 'refuse' and not (ARGV[4] == '1' and oldest ~= '') then count_refused(KEYS[6], KEYS[3], 100000, ARGV[5], fresh) end
      return { 'full', undone, blocking, oldest }
    end
    redis.pcall('HINCRBY', KEYS[3], 'dropped', call('XTRIM', stream, 'MAXLEN', '=', math.max(0, bound - fresh)))
  end
end
fresh = 0
for n = 1, count do
  local key, at = KEYS[8 + n], 8 + 3 * n
  -- A key may occur twice in a slice: publish it only once.
  if not (keyed and (seen[n] or made[key])) then
    local meta, order, id = ARGV[at + 1], ARGV[at + 2], nil
    if meta == '' then
      id = call('XADD', stream, '*', 'payload', ARGV[at], 'agent_id', agent)
    else
      id = call('XADD', stream, '*', 'payload', ARGV[at], 'meta', meta, 'agent_id', agent)
    end
    fresh = fresh + 1
    if keyed then
      made[key] = true
      call('SET', key, id .. suffix, 'EX', window)
    end
    if order ~= '' then call('ZADD', KEYS[5], 0, order_member(order, id)) end
  end
end
if fresh > 0 then
  redis.pcall('HINCRBY', KEYS[3], 'published', fresh)
  call('ZADD', KEYS[2], 'NX', call('TIME')[1] .. '000', ARGV[5])
end
record(KEYS[4], ARGV[1], ARGV[3], ARGV[2])
return { 'done' }
