#!lua flags=allow-oom
-- Takes a piece of work for a task, or lets it go.
-- KEYS: what names the task that has it
-- ARGV: task id, seconds for which others may not have it; 0 lets it go
-- Returns: 1 if it is this task's, 0 if another has it
local before = redis.call('GET', KEYS[1])
if before and before ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
end
return 1
