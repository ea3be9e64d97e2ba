-- keep_attempts(attempts, id, number): records the attempts at a task that is deferred before it
-- starts. An existing record stays: it shows that a dead worker may have begun the task. The claim
-- of an agent that held it by hand is dropped.
local function keep_attempts(attempts, id, number)
  local made = string.match(replace(attempts, 'HGET', id) or '', '^(%d+) hand:')
  if made then
    redis.call('HSET', attempts, id, made .. ' -')
  else
    redis.call('HSETNX', attempts, id, number)
  end
end
