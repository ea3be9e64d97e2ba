#!lua flags=allow-oom
-- Orders that a queue, an agent, a worker or the whole project takes no new tasks.
-- KEYS: paused
-- ARGV: field of the order, who orders it, why ('' for no reason)
-- Returns: the order as JSON
--@include hold
local order = { by = ARGV[2], at = now() }
if ARGV[3] ~= '' then order.why = ARGV[3] end
local text = cjson.encode(order)
redis.call('HSET', KEYS[1], ARGV[1], text)
return text
