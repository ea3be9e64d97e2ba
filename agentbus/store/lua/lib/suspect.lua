-- suspect(stream, group, aside, attempts, retries, id, holder): puts aside a task that its holder may have begun before
-- it died, due at once. Returns false if the entry was trimmed. Such a task runs alone, those with the fewest attempts
-- first: its score is their number, below every time. An attempt that was not counted when it began is counted now, with
-- its holder after a question mark: a first one, and one that follows a failure.
local function suspect(stream, group, aside, attempts, retries, id, holder)
  if #redis.call('XCLAIM', stream, group, aside, 0, id, 'JUSTID') == 0 then return false end
  local number = redis.call('HGET', attempts, id)
  if not string.find(number or '', ' ', 1, true) then
    number = string.format('%d ?%s', (tonumber(number) or 0) + 1, holder)
    redis.call('HSET', attempts, id, number)
  end
  redis.call('ZADD', retries, math.min(tonumber(string.match(number, '^%d+')) or 1, 999), id)
  return true
end
