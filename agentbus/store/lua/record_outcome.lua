#!lua flags=allow-oom
-- Records the outcome of a task with dependents, or deletes a record without dependents.
-- KEYS: recorded outcomes, awaited; to record one, then those of the script `read_task_state`
-- ARGV: task's id, group, its outcome ('' to delete the record), the prefix of its members; to record one, then the state
--       from which it follows, the entry's id and the number as in `read_task_state`
-- Returns: 1 if it has dependents, else 0
--@include ids
--@include stream
--@include moved_entry
--@include task_state
--@include record_outcome
--@include forget_outcome
if ARGV[3] ~= '' then
  -- A dead dependent is recorded for all groups, with the first failure of its chain.
  if redis.call('HGET', KEYS[1], ARGV[1] .. '\n') then return 1 end
  -- Since the caller has read it, the server may have lost that the task ended.
  local state = task_state(KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], ARGV[6], ARGV[1], ARGV[7], ARGV[2])
  if state[1] ~= ARGV[5] then return 0 end
  return record_outcome(KEYS[2], KEYS[1], ARGV[1], ARGV[2], ARGV[3]) and 1 or 0
end
forget_outcome(KEYS[1], KEYS[2], ARGV[1] .. '\n' .. ARGV[2], ARGV[4])
return 0
