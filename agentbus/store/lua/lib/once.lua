-- A request resent after a lost reply must not act twice: its sender's slot keeps the last token
-- and reply.
local function already(slot, token)
  local kept = redis.call('GET', slot)
  if kept and string.sub(kept, 1, #token + 1) == token .. ' ' then
    return decode(string.sub(kept, #token + 2))
  end
end
-- The expiry exceeds the leap of a corrected clock, an hour or two: a request executed before the
-- leap may be resent after it.
local function keep(slot, token, reply)
  redis.call('SET', slot, token .. ' ' .. cjson.encode(reply), 'EX', 10800)
  return reply
end
