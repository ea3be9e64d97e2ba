#!lua flags=allow-oom
-- Records the outcome of a task with dependents, or deletes a record without dependents.
-- KEYS: recorded outcomes, awaited
-- ARGV: task's id, group, its outcome ('' to delete the record), the prefix of its members
-- Returns: 1 if it has dependents, else 0
--@include record_outcome
--@include forget_outcome
if ARGV[3] ~= '' then
  -- A dependent that was buried is recorded for all groups, with what failed first of its chain.
  if redis.call('HGET', KEYS[1], ARGV[1] .. '\n') then return 1 end
  return record_outcome(KEYS[2], KEYS[1], ARGV[1], ARGV[2], ARGV[3]) and 1 or 0
end
forget_outcome(KEYS[1], KEYS[2], ARGV[1] .. '\n' .. ARGV[2], ARGV[4])
return 0
