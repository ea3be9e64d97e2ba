#!lua
-- Appends payloads without dedup keys, all or none, if the queue has room.
-- KEYS: stream, once slot, stats, queues, the retry stream
-- ARGV: token, bound, queue, the envelope of all ('': none; '*': each payload is followed by its own), the agent that
--       publishes them, then the payloads
-- Returns: the first id, which the ids of the others follow; or nothing if the queue is full unless
--          trimmed
local call, token = redis.call, ARGV[1] .. ' '
-- This repeats lib/once.lua for a plain id.
local kept = call('GET', KEYS[2])
if kept and string.sub(kept, 1, #token) == token then return string.sub(kept, #token + 1) end
local stream, last, meta, agent = KEYS[1], #ARGV, ARGV[4], ARGV[5]
local step = meta == '*' and 2 or 1
local count = (last - 5) / step
if call('XLEN', stream) + call('XLEN', KEYS[5]) + count > tonumber(ARGV[2]) then return false end
local id, first = '*', nil
for i = 6, last, step do
  local found
  if step == 2 then meta = ARGV[i + 1] end
  if meta == '' then
    found = call('XADD', stream, id, 'payload', ARGV[i], 'agent_id', agent)
  else
    found = call('XADD', stream, id, 'payload', ARGV[i], 'meta', meta, 'agent_id', agent)
  end
  if i == 6 then
    first = found
    id = string.match(first, '^%d+') .. '-*'
  end
end
-- Use the expiry of lib/once.lua.
call('SETEX', KEYS[2], 10800, token .. first)
local published = redis.pcall('HINCRBY', KEYS[3], 'published', count)
-- An error means that another program has stored another type there; it must not hide the publish.
if published == count or type(published) == 'table' then
  call('ZADD', KEYS[4], 'NX', string.match(first, '^%d+'), ARGV[3])
end
return first
