#!lua flags=allow-oom
-- Removes an empty queue from the registry.
-- KEYS: queues, then all keys of a queue
-- ARGV: queue
-- Returns: 1 if it was removed, else 0
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then return 0 end
end
return redis.call('ZREM', KEYS[1], ARGV[1])
