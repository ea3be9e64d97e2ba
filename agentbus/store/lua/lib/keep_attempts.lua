-- keep_attempts(attempts, id, number): records how many attempts were made at a task that is put aside before it starts. What
-- is recorded already stays: it tells that a dead worker may have begun the task. An agent that held it has no claim.
local function keep_attempts(attempts, id, number)
  local made = string.match(replace(attempts, 'HGET', id) or '', '^(%d+) hand:')
  if made then
    redis.call('HSET', attempts, id, made .. ' -')
  else
    redis.call('HSETNX', attempts, id, number)
  end
end
