#!lua
-- Records the place of a queue that has none.
-- It is home if the queue exists there, or must be there; else the open shard with the fewest queues.
-- KEYS: shards, places, queues, then keys of which one exists if the queue is at home
-- ARGV: queue, 1 if it must be at home
-- Returns: the number of its shard, '' for home
local call = redis.call
local numbers = call('HGET', KEYS[1], 'numbers')
if not numbers then return '' end
local place = call('HGET', KEYS[2], ARGV[1])
if place then return place end
place = ''
if ARGV[2] ~= '1' and not call('ZSCORE', KEYS[3], ARGV[1]) and call('EXISTS', unpack(KEYS, 4)) == 0 then
  local counts, least = {}, nil
  for _, number in ipairs(call('HVALS', KEYS[2])) do counts[number] = (counts[number] or 0) + 1 end
  local open = tonumber(call('HGET', KEYS[1], 'open'))
  for number in string.gmatch(numbers, '%d+') do
    if open > 0 and (not least or (counts[number] or 0) < least) then place, least = number, counts[number] or 0 end
    open = open - 1
  end
end
call('HSET', KEYS[2], ARGV[1], place)
return place
