#!lua flags=allow-oom
-- Deletes an agent's cursors, so that it starts at the oldest message again.
-- KEYS: heard, cursors
-- ARGV: for each cursor its field in `heard`
-- Returns: number of deleted cursors
--@include replace
local gone = 0
for i = 2, #KEYS do
  gone = gone + redis.call('DEL', KEYS[i])
  replace(KEYS[1], 'HDEL', ARGV[i - 1])
end
return gone
