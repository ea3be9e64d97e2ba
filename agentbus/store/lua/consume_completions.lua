#!lua flags=allow-oom
-- Consumes completions, all or none, for one waiter.
-- KEYS: once slot, then the completions
-- ARGV: token, then for each completion the value that was read
-- Returns: {'1'} if they existed and are deleted now, else {'0'}
--@include json
--@include once
local before = already(KEYS[1], ARGV[1])
if before then return before end
for i = 2, #KEYS do
  if redis.call('GET', KEYS[i]) ~= ARGV[i] then return { '0' } end
end
for i = 2, #KEYS do redis.call('DEL', KEYS[i]) end
return keep(KEYS[1], ARGV[1], { '1' })
