#!lua flags=no-writes
-- Reads flags and the channel's last id in one step, so that no change is missed.
-- KEYS: channel, then for each flag: flag, done, failed, fence
-- Returns: {channel's last id, then for each flag: value or '', remaining TTL in ms, completion or '', failure or '',
--          fencing token}
--@include stream
local reply = { stream(KEYS[1])['last-generated-id'] }
for i = 2, #KEYS, 4 do
  reply[#reply + 1] = redis.call('GET', KEYS[i]) or ''
  reply[#reply + 1] = tostring(redis.call('PTTL', KEYS[i]))
  reply[#reply + 1] = redis.call('GET', KEYS[i + 1]) or ''
  reply[#reply + 1] = redis.call('GET', KEYS[i + 2]) or ''
  reply[#reply + 1] = redis.call('GET', KEYS[i + 3]) or '0'
end
return reply
