#!lua flags=allow-oom
-- Orders that a worker stops; one that is not on the list is left alone.
-- KEYS: the worker's record
-- Returns: 1, or 0 if it is not on the list
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'stop', 1)
return 1
