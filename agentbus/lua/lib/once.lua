-- A request that is sent again because its answer was lost must not act twice: the slot of its
-- sender keeps the last token with the reply that it got.
local function already(slot, token)
  local kept = redis.call('GET', slot)
  if kept and string.sub(kept, 1, #token + 1) == token .. ' ' then
    return cjson.decode(string.sub(kept, #token + 2))
  end
end
local function keep(slot, token, reply)
  redis.call('SET', slot, token .. ' ' .. cjson.encode(reply), 'EX', 300)
  return reply
end
