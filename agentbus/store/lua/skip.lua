#!lua flags=allow-oom
-- Acknowledges cancelled tasks that a consumer has taken and must not run.
-- KEYS: stream, cancelled
-- ARGV: group, the part of a task's id after the entry's id, then the ids
-- Returns: the ids of those that were cancelled
local gone = {}
for i = 3, #ARGV do
  if type(redis.pcall('HGET', KEYS[2], ARGV[i] .. ARGV[2])) == 'string' then
    redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
    gone[#gone + 1] = ARGV[i]
  end
end
return gone
