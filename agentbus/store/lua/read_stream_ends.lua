#!lua flags=no-writes
-- Returns the lengths of streams and their first and last ids, without entries.
-- KEYS: streams
-- Returns: {the server's time in ms, then for each stream: length (-1 if it is not a stream), first id, last id}
local time = redis.call('TIME')
local found = { tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) }
for _, key in ipairs(KEYS) do
  if redis.call('TYPE', key)['ok'] == 'stream' then
    local first = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
    local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
    found[#found + 1] = { redis.call('XLEN', key), first and first[1] or '', last and last[1] or '' }
  else
    found[#found + 1] = { -1, '', '' }
  end
end
return found
