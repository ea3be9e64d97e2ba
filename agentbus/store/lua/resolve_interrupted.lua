#!lua flags=allow-oom
-- Returns the reply of a request whose caller was interrupted.
-- If it was not executed, ensures that it never will be.
-- KEYS: once slot
-- ARGV: token
-- Returns: the reply, or {} if the request was not executed
--@include json
--@include once
local before = already(KEYS[1], ARGV[1])
if before then return before end
-- Keep the reply of a later request in this slot.
local kept = redis.call('GET', KEYS[1])
local function number(token) return tonumber(string.match(token or '', '^(%d+)%.%x+$')) end
local last = kept and number(string.match(kept, '^%S+'))
if not last or last < number(ARGV[1]) then keep(KEYS[1], ARGV[1], {}) end
return {}
