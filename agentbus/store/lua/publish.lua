#!lua
-- Appends tasks with their envelopes, all or none of them.
-- KEYS: stream, queues, stats, once slot, order, metrics, readers, the stream of retries, then the seen keys of those with a dedup key
-- ARGV: 1 to answer 'full' at once if tasks stay behind an unfinished one, queue, bound, 'refuse' or 'trim', dedup window in seconds, task id's suffix, token, how many tasks, then for
--       each how many words follow at the end, which of the seen keys is its own (0: none), its ordering key
--       ('': none), its fields and values
-- Returns: {'tasks', id, …}, whole task ids for those seen before; or {'full', how many are not done, the
--          group that blocks ('' if none), ''}, or the number of all and the id behind which they stay
--@include once
--@include ids
--@include least
--@include undelivered
--@include needed
--@include order
--@include refused
local before = already(KEYS[4], ARGV[7])
if before then return before end
local call, stream, bound, count = redis.call, KEYS[1], tonumber(ARGV[3]), tonumber(ARGV[8])
local seen, fresh = {}, count
for i = 9, #KEYS do
  seen[i - 8] = call('GET', KEYS[i])
  if seen[i - 8] then fresh = fresh - 1 end
end
local fits, undone, blocking, oldest = true, 0, '', ''
if fresh > 0 then fits, undone, blocking, oldest = room(stream, bound, fresh, KEYS[7], KEYS[8]) end
if not fits then
  if ARGV[1] == '1' and oldest ~= '' then return { 'full', undone, blocking, oldest } end
  if ARGV[4] ~= 'trim' then
    refused(KEYS[6], KEYS[3], 100000, ARGV[2], fresh)
    return { 'full', undone, blocking, oldest }
  end
  redis.pcall('HINCRBY', KEYS[3], 'dropped', call('XTRIM', stream, 'MAXLEN', '=', math.max(0, bound - fresh)))
end
local reply, at = { 'tasks' }, 9
fresh = 0
for n = 1, count do
  local words, mark, key = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), ARGV[at + 2]
  -- A key may occur twice in a batch.
  local id = mark > 0 and (seen[mark] or call('GET', KEYS[8 + mark])) or nil
  if not id then
    id = call('XADD', stream, '*', unpack(ARGV, at + 3, at + 2 + words))
    fresh = fresh + 1
    if mark > 0 then call('SET', KEYS[8 + mark], id .. ARGV[6], 'EX', ARGV[5]) end
    if key ~= '' then call('ZADD', KEYS[5], 0, place(key, id)) end
  end
  reply[n + 1] = id
  at = at + 3 + words
end
if fresh > 0 then
  redis.pcall('HINCRBY', KEYS[3], 'published', fresh)
  call('ZADD', KEYS[2], 'NX', call('TIME')[1] .. '000', ARGV[2])
end
return keep(KEYS[4], ARGV[7], reply)
