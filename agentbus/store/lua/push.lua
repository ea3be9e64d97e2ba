#!lua
-- Appends tasks with nothing but payloads, all or none of them, if there is room.
-- KEYS: stream, once slot, stats, queues
-- ARGV: token, bound, queue, then the payloads
-- Returns: the first id, which those of the others follow; or nothing if there is no room without trimming
local call, token = redis.call, ARGV[1] .. ' '
-- As lib/once.lua, for a plain id.
local kept = call('GET', KEYS[2])
if kept and string.sub(kept, 1, #token) == token then return string.sub(kept, #token + 1) end
local stream, last = KEYS[1], #ARGV
local count = last - 3
if call('XLEN', stream) + count > tonumber(ARGV[2]) then return false end
local first = call('XADD', stream, '*', 'payload', ARGV[4])
if count > 1 then
  local same = string.match(first, '^%d+') .. '-*'
  for i = 5, last do call('XADD', stream, same, 'payload', ARGV[i]) end
end
call('SETEX', KEYS[2], 300, token .. first)
if call('HINCRBY', KEYS[3], 'published', count) == count then
  call('ZADD', KEYS[4], 'NX', string.match(first, '^%d+'), ARGV[3])
end
return first
