#!lua
-- Appends tasks of which there is nothing to say but their payloads, all or none of them.
-- KEYS: stream, once slot, stats, queues, metrics, readers
-- ARGV: token, bound, 'trim' or 'refuse', queue, then the payloads
-- Returns: the first id, those of the others follow it; or {'full', length}
local call, token = redis.call, ARGV[1] .. ' '
-- As in the file once, but for a plain id.
local kept = call('GET', KEYS[2])
if kept and string.sub(kept, 1, #token) == token then return string.sub(kept, #token + 1) end
local stream, bound, last = KEYS[1], tonumber(ARGV[2]), #ARGV
local count = last - 4
-- Nearly always there is room, and what trims need not even be set up.
if call('XLEN', stream) + count > bound then
--@include ids
--@include needed
--@include refused
  if not room(stream, bound, count, KEYS[6]) then
    if ARGV[3] ~= 'trim' then
      refused(KEYS[5], KEYS[3], 100000, ARGV[4], count)
      return { 'full', call('XLEN', stream) }
    end
    call('HINCRBY', KEYS[3], 'dropped', call('XTRIM', stream, 'MAXLEN', '=', math.max(0, bound - count)))
  end
end
local first = call('XADD', stream, '*', 'payload', ARGV[5])
if count > 1 then
  local same = string.match(first, '^%d+') .. '-*'
  for i = 6, last do call('XADD', stream, same, 'payload', ARGV[i]) end
end
call('SETEX', KEYS[2], 300, token .. first)
if call('HINCRBY', KEYS[3], 'published', count) == count then
  call('ZADD', KEYS[4], 'NX', string.match(first, '^%d+'), ARGV[4])
end
return first
