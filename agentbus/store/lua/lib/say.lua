-- say(channel, agents, topics, bound, agent, message, topic, ...): appends a message to the
-- channel, trims it to about `bound` entries, and records the agent and topic. After a space, `bound`
-- may name the milliseconds for which messages are kept. The rest are further fields. Returns the id. A corrupted index must not make a written message look refused.
local function touch(index, member, at)
  if redis.pcall('ZADD', index, at, member) == 1 then
    redis.call('ZREMRANGEBYRANK', index, 0, -10001)
  end
end
local function say(channel, agents, topics, bound, agent, message, topic, ...)
  local id
  local most, kept = string.match(bound, '^(%d+) ?(%d*)$')
  if topic == '' then
    id = redis.call('XADD', channel, 'MAXLEN', '~', most, '*',
      'agent_id', agent, 'message', message, ...)
  else
    id = redis.call('XADD', channel, 'MAXLEN', '~', most, '*',
      'agent_id', agent, 'message', message, 'topic', topic, ...)
  end
  local now = tonumber(string.match(id, '^%d+'))
  if kept ~= '' then
    redis.call('XTRIM', channel, 'MINID', '=', string.format('%d', math.max(0, now - tonumber(kept))))
  end
  local at = tostring(now / 1000)
  touch(agents, agent, at)
  if topic ~= '' then touch(topics, topic, at) end
  return id
end
