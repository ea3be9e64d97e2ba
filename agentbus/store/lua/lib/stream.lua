-- stream(key): returns the reply of XINFO STREAM as a table, with zeros if the stream does not
-- exist.
local function stream(key)
  local found = { ['length'] = 0, ['last-generated-id'] = '0-0', ['entries-added'] = 0 }
  if redis.call('EXISTS', key) == 0 then return found end
  local reply = redis.call('XINFO', 'STREAM', key)
  for i = 1, #reply, 2 do found[reply[i]] = reply[i + 1] end
  return found
end
