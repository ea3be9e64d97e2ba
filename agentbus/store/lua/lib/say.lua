-- say(channel, agents, topics, bound, agent, message, topic, ...): appends a message to the
-- channel, trims it to about `bound` entries, and records the agent and topic. The rest are further
-- fields. Returns the id. A corrupted index must not make a written message look refused.
local function touch(index, member, at)
  if redis.pcall('ZADD', index, at, member) == 1 then
    redis.call('ZREMRANGEBYRANK', index, 0, -10001)
  end
end
local function say(channel, agents, topics, bound, agent, message, topic, ...)
  local id
  if topic == '' then
    id = redis.call('XADD', channel, 'MAXLEN', '~', bound, '*',
      'agent_id', agent, 'message', message, ...)
  else
    id = redis.call('XADD', channel, 'MAXLEN', '~', bound, '*',
      'agent_id', agent, 'message', message, 'topic', topic, ...)
  end
  local at = tostring(tonumber(string.match(id, '^%d+')) / 1000)
  touch(agents, agent, at)
  if topic ~= '' then touch(topics, topic, at) end
  return id
end
