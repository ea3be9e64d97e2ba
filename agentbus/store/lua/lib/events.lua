-- last_of(relay, ledger, last): returns the id of the last event that a ledger published, as far as the server
-- still knows it: after a loss it is at most the stream's last id.
-- overtaken(relay, ledger, token, owner): returns the token of another relay of the same ledger, or nothing.
-- published_anew(relay, but): makes all ledgers but one find that their events were removed.
-- plausible(id): returns whether an id is at most a day ahead of the server's clock.
local function last_of(relay, ledger, last)
  local own = redis.call('HGET', relay, 'last.' .. ledger)
  if not own or not is_id(own) then return '0-0' end
  return newer(own, last) and last or own
end
local function overtaken(relay, ledger, token, owner)
  local known = redis.call('HMGET', relay, 'token.' .. ledger, 'owner.' .. ledger)
  local number = tonumber(known[1] or '')
  if number and (number > tonumber(token) or number == tonumber(token) and known[2] ~= owner) then return known[1] end
end
local function published_anew(relay, but)
  for _, field in ipairs(redis.call('HKEYS', relay)) do
    if string.sub(field, 1, 5) == 'last.' and field ~= 'last.' .. but then redis.call('HDEL', relay, field) end
  end
end
local function plausible(id)
  local now = redis.call('TIME')
  return is_id(id) and not newer(id, string.format('%d999-0', now[1] + 86400))
end
