-- put_aside_suspect(stream, group, aside, attempts, retries, id, holder): puts aside a task that its holder may have begun before
-- it died, due at once. Returns false if the entry was trimmed. Such a task runs alone, those with the fewest attempts
-- first: its score is their number, below every time. An attempt that was not counted when it began is counted now, with
-- its holder after a question mark: a first one, and one that follows a failure.
local function put_aside_suspect(stream, group, aside, attempts, retries, id, holder)
  if #redis.call('XCLAIM', stream, group, aside, 0, id, 'JUSTID') == 0 then return false end
  local number = replace(attempts, 'HGET', id)
  if not string.find(number or '', ' ', 1, true) then
    number = string.format('%d ?%s', math.min(tonumber(number) or 0, 1e9) + 1, holder)
    replace(attempts, 'HSET', id, number)
  end
  replace(retries, 'ZADD', math.min(tonumber(string.match(number, '^%d+')) or 1, 999), id)
  return true
end
