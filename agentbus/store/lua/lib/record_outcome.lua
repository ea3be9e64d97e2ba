-- record_outcome(index, notes, id, group, verdict): records a task's outcome for a group ('+' done,
-- '!' and an error: dead, '-' and an error: cancelled) if it has dependents, which a later step
-- releases. Returns whether it has any. A corrupted index does not prevent the acknowledgement.
local function record_outcome(index, notes, id, group, verdict)
  local field = id .. '\n' .. group
  if type(redis.pcall('ZSCORE', index, field)) ~= 'string' then return false end
  return type(redis.pcall('HSETNX', notes, field, verdict)) == 'number'
end
