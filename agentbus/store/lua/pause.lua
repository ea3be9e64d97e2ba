#!lua flags=allow-oom
-- Pauses a queue, an agent, a worker or the whole project.
-- KEYS: paused
-- ARGV: field of the order, by whom, why ('' for no reason)
-- Returns: the order as JSON
--@include json
--@include hold
--@include replace
local order = { by = ARGV[2], at = now() }
if ARGV[3] ~= '' then order.why = ARGV[3] end
local text = cjson.encode(order)
replace(KEYS[1], 'HSET', ARGV[1], text)
return text
