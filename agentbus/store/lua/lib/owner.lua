-- owns(stream, group, consumer, id, attempts): returns whether this consumer holds the entry now.
-- If it holds it by hand, a newline and a token follow its name; the token must be that in the
-- record of the entry's attempts.
local function token_of(record)
  return string.match(type(record) == 'string' and record or '', '^%d+ hand:(%d+)$')
end
local function owns(stream, group, consumer, id, attempts)
  local name, token = string.match(consumer, '^(.*)\n(%d+)$')
  if token and token_of(redis.pcall('HGET', attempts, id)) ~= token then return false end
  return #redis.call('XPENDING', stream, group, id, id, 1, name or consumer) == 1
end
