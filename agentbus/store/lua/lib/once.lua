-- A request that is sent again because its answer was lost must not act twice: the slot of its
-- sender keeps the last token with the reply that it got.
local function already(slot, token)
  local kept = redis.call('GET', slot)
  if kept and string.sub(kept, 1, #token + 1) == token .. ' ' then
    return cjson.decode(string.sub(kept, #token + 2))
  end
end
-- A clock that is set right may leap by an hour or two, for which no slot may be forgotten: a request
-- that was done before the leap may be sent again after it.
local function keep(slot, token, reply)
  redis.call('SET', slot, token .. ' ' .. cjson.encode(reply), 'EX', 10800)
  return reply
end
