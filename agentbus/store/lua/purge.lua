#!lua flags=allow-oom
-- Removes dead letters: those named, or all.
-- KEYS: dead letters, replayed, purged
-- ARGV: 'all' or 'named', how many letters, and how many bytes, are written again at most, then the letters' ids
-- Returns: how many were removed
--@include replace
local stream, replayed, purged = KEYS[1], KEYS[2], KEYS[3]
replace(purged, 'SCARD')
replace(replayed, 'HLEN')
if ARGV[1] == 'all' then
  local all = redis.call('XLEN', stream) - redis.call('SCARD', purged)
  redis.call('UNLINK', stream, replayed, purged)
  return all
end
local gone = 0
for i = 4, #ARGV do
  if redis.call('XRANGE', stream, ARGV[i], ARGV[i])[1] and redis.call('SADD', purged, ARGV[i]) == 1 then
    redis.call('HDEL', replayed, ARGV[i])
    gone = gone + 1
  end
end
if redis.call('EXISTS', purged) == 0 then return gone end
-- A stream gives memory back only from its oldest end: first what lies there.
for _ = 1, 20 do
  local page, old = redis.call('XRANGE', stream, '-', '+', 'COUNT', 50), 0
  while page[old + 1] and redis.call('SREM', purged, page[old + 1][1]) == 1 do old = old + 1 end
  if old > 0 then redis.call('XTRIM', stream, 'MAXLEN', '=', redis.call('XLEN', stream) - old) end
  if old < 50 then break end
end
if redis.call('EXISTS', purged) == 0 then return gone end
-- The remaining letters are rewritten if they are few. Else purged ones are only hidden until they are the
-- oldest, since rewriting would block the server.
local length, bytes, kept, from = redis.call('XLEN', stream), 0, {}, '-'
if length > tonumber(ARGV[2]) then return gone end
while true do
  local page = redis.call('XRANGE', stream, from, '+', 'COUNT', 50)
  for _, entry in ipairs(page) do
    if redis.call('SISMEMBER', purged, entry[1]) == 0 then
      kept[#kept + 1] = entry
      -- Lua's stack holds about 8,000 words: another program's huge letter is not written again.
      if #entry[2] > 7000 then return gone end
      for _, word in ipairs(entry[2]) do bytes = bytes + #word end
    end
    from = '(' .. entry[1]
  end
  if bytes > tonumber(ARGV[3]) then return gone end
  if #page < 50 then break end
end
redis.call('DEL', stream, purged)
for _, entry in ipairs(kept) do redis.call('XADD', stream, entry[1], unpack(entry[2])) end
return gone
