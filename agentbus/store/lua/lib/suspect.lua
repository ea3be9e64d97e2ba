-- suspect(stream, group, aside, attempts, retries, id, holder): puts aside a task that its holder may have begun before
-- it died, due at once. Returns false if the entry was trimmed. Such a task runs alone, those with the fewest attempts
-- first: its score is their number, below every time. Its first attempt was not counted, so this one is, with its holder
-- after a question mark.
local function suspect(stream, group, aside, attempts, retries, id, holder)
  if #redis.call('XCLAIM', stream, group, aside, 0, id, 'JUSTID') == 0 then return false end
  local number = redis.call('HGET', attempts, id)
  if not number then
    number = '1 ?' .. holder
    redis.call('HSET', attempts, id, number)
  end
  redis.call('ZADD', retries, math.min(tonumber(string.match(number, '^%d+')) or 1, 999), id)
  return true
end
