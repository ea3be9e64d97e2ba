-- write_presence(key, agents, agent, kept, now, state, words, bell): records an agent's presence in
-- the key for `kept` ms. An empty state keeps the present one, initially `active`; an empty value in
-- `words` removes its field. A state other than `active` that begins rings the bell.
local function write_presence(key, agents, agent, kept, now, state, words, bell)
  local stamp = string.format('%d', now)
  local before = replace(key, 'HGET', 'state')
  if state == '' then state = before or 'active' end
  if state ~= before then
    redis.call('HSET', key, 'since', stamp)
    if state ~= 'active' then
      replace(bell, 'XADD', 'MAXLEN', '=', 1, '*', 'state', state)
      redis.call('PEXPIRE', bell, kept)
    end
  end
  redis.call('HSET', key, 'state', state, 'seen', stamp)
  for i = 1, #words, 2 do
    if words[i + 1] == '' then
      redis.call('HDEL', key, words[i])
    else
      redis.call('HSET', key, words[i], words[i + 1])
    end
  end
  redis.call('PEXPIRE', key, kept)
  touch(agents, agent, string.format('%.3f', now / 1000))
end
