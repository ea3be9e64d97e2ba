#!lua flags=allow-oom
-- Claims a work item for a task, or releases it.
-- KEYS: the claim
-- ARGV: task id, seconds until others may claim it; 0 releases it
-- Returns: 1 if this task has it, 0 if another has
local before = redis.call('GET', KEYS[1])
if before and before ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
end
return 1
