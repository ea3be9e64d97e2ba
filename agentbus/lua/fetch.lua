#!lua flags=allow-oom
-- Takes tasks of several streams, the first stream's first.
-- KEYS: streams
-- ARGV: group, consumer, how many at most
-- Returns: {{index of the stream, entries}, …}
local left, taken = tonumber(ARGV[3]), {}
for i, stream in ipairs(KEYS) do
  if left > 0 and redis.call('EXISTS', stream) == 1 then
    local reply = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', left, 'STREAMS', stream, '>')
    if reply then
      local entries = reply[1][2]
      left = left - #entries
      taken[#taken + 1] = { i, entries }
    end
  end
end
return taken
