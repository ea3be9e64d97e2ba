#!lua flags=allow-oom
-- Consumes completions, all or none of them, for one awaiter.
-- KEYS: once slot, then the completions
-- ARGV: token, then for each completion its value as it was seen
-- Returns: {'1'} if they were there and are gone now, else {'0'}
--@include once
local before = already(KEYS[1], ARGV[1])
if before then return before end
for i = 2, #KEYS do
  if redis.call('GET', KEYS[i]) ~= ARGV[i] then return { '0' } end
end
for i = 2, #KEYS do redis.call('DEL', KEYS[i]) end
return keep(KEYS[1], ARGV[1], { '1' })
