#!lua flags=no-writes
-- Reads flags and the channel's last id in one step, so that no change is missed.
-- KEYS: channel, then for each flag: flag, done, failed, fence
-- Returns: {channel's last id, then for each flag (value or '', remaining TTL in ms, completion or '', failure or '',
--          fencing token; nil for a value, completion or failure that another program stored as another type),
--          how many entries the channel has ever had}
--@include stream
local function read(key)
  local value = redis.pcall('GET', key)
  return type(value) ~= 'table' and (value or '')
end
-- Read the flags even if the channel's key has another type.
local there, info = pcall(stream, KEYS[1])
if not there then info = { ['last-generated-id'] = '0-0', ['entries-added'] = 0 } end
local reply = { info['last-generated-id'] }
for i = 2, #KEYS, 4 do
  reply[#reply + 1] = read(KEYS[i])
  reply[#reply + 1] = tostring(redis.call('PTTL', KEYS[i]))
  reply[#reply + 1] = read(KEYS[i + 1])
  reply[#reply + 1] = read(KEYS[i + 2])
  reply[#reply + 1] = read(KEYS[i + 3]) or '0'
end
reply[#reply + 1] = info['entries-added']
return reply
