#!lua flags=allow-oom
-- Forgets a queue of which nothing is left.
-- KEYS: queues, then all that a queue may be made of
-- ARGV: queue
-- Returns: 1 if it was known and is forgotten, else 0
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then return 0 end
end
return redis.call('ZREM', KEYS[1], ARGV[1])
