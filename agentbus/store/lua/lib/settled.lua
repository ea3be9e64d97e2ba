-- settled(index, notes, id, group, verdict): notes how a task ended for a group ('+' done, '!' and an error: buried),
-- if others wait for that; they are told in a further step. Returns whether any do. What another program made of
-- the index keeps nobody from acknowledging.
local function settled(index, notes, id, group, verdict)
  local field = id .. '\n' .. group
  if type(redis.pcall('ZSCORE', index, field)) ~= 'string' then return false end
  return type(redis.pcall('HSETNX', notes, field, verdict)) == 'number'
end
