#!lua
-- Appends tasks from the outbox of another shard, each once, in the order of the outbox.
-- KEYS: the last ids of outboxes, stream, order, queues, stats
-- ARGV: the outbox's name, queue, the suffix of task ids, then for each entry its id, its ordering key ('': none),
--       number of words that follow, its fields and values
-- Returns: number of tasks that were not appended before
--@include ids
--@include stream
--@include order
local call, fresh, at = redis.call, 0, 4
local last = call('HGET', KEYS[1], ARGV[1]) or '0-0'
local newest = stream(KEYS[2])['last-generated-id']
local began
while ARGV[at] do
  local id, key, count = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  if newer(id, last) then
    local words, named = { unpack(ARGV, at + 3, at + 2 + count) }, false
    for i = 1, count, 2 do named = named or words[i] == 'id' end
    -- The task's id, which its sender may know, is that of its entry; if later tasks are there, a field.
    if named or not newer(id, newest) then
      if not named then words[count + 1], words[count + 2] = 'id', id .. ARGV[3] end
      newest = call('XADD', KEYS[2], '*', unpack(words))
    else
      newest = call('XADD', KEYS[2], id, unpack(words))
    end
    if key ~= '' then call('ZADD', KEYS[3], 0, order_member(key, newest)) end
    began = began or string.match(newest, '^%d+')
    last, fresh = id, fresh + 1
  end
  at = at + 3 + count
end
if fresh > 0 then
  call('HSET', KEYS[1], ARGV[1], last)
  redis.pcall('HINCRBY', KEYS[5], 'published', fresh)
  call('ZADD', KEYS[4], 'NX', began, ARGV[2])
end
return fresh
