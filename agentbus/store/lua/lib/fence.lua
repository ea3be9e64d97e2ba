-- stored_token(key): returns the token; deletes a value of another type.
-- fence(key, ttl): stores and returns the next fencing token of a flag. It is greater than the last
-- one, and not less than the server's clock in ms, so that tokens keep growing on a server that has
-- lost its data. `ttl` is the hold's TTL in ms, '' for none.
-- token_ttl(ttl): returns the ms for which the token is kept: always longer than the hold, so that
-- a clock that is set back by less than a day does not repeat a token.
local function stored_token(key)
  local found = redis.pcall('GET', key)
  if type(found) ~= 'table' then return found end
  redis.call('DEL', key)
  return false
end
local function token_ttl(ttl)
  return string.format('%d', tonumber(ttl) + 86400000)
end
local function fence(key, ttl)
  local time = redis.call('TIME')
  local token = string.format('%d', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
  local last = redis.call('GET', key)
  -- Compare digits, since Lua's numbers hold only 53 of 64 bits. Another program may have stored
  -- any value.
  if last and string.find(last, '^[1-9]%d*$') and #last < 20 and not longer(token, last)
    and longer('9223372036854775807', last) then
    redis.call('INCR', key)
    token = redis.call('GET', key)
  end
  if ttl == '' then
    redis.call('SET', key, token)
  else
    redis.call('SET', key, token, 'PX', token_ttl(ttl))
  end
  return token
end
