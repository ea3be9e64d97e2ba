#!lua flags=no-writes
-- Looks at flags and at the channel's end in one moment, so that nothing falls between.
-- KEYS: channel, then for each flag: flag, done, fence
-- Returns: {channel's last id, then for each flag: value or '', TTL left in ms, completion or '', fencing token}
--@include stream
local reply = { stream(KEYS[1])['last-generated-id'] }
for i = 2, #KEYS, 3 do
  reply[#reply + 1] = redis.call('GET', KEYS[i]) or ''
  reply[#reply + 1] = tostring(redis.call('PTTL', KEYS[i]))
  reply[#reply + 1] = redis.call('GET', KEYS[i + 1]) or ''
  reply[#reply + 1] = redis.call('GET', KEYS[i + 2]) or '0'
end
return reply
