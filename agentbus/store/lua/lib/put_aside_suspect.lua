-- put_aside_suspect(stream, group, aside, attempts, retries, id, holder): defers a task, due at
-- once, that its holder may have begun before it died. Returns false if the entry was trimmed. Such
-- a task runs alone, the fewest attempts first: its score is the number of attempts, which is lower
-- than any time. An attempt that was not counted at its start (a first one, or one after a failure)
-- is counted now, with its holder after a question mark.
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
