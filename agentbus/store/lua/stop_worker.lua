#!lua flags=allow-oom
-- Orders a registered worker to stop.
-- KEYS: the worker's record
-- Returns: 1, or 0 if it is not registered
--@include replace
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
replace(KEYS[1], 'HSET', 'stop', 1)
return 1
