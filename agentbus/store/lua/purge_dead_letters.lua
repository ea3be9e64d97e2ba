#!lua flags=allow-oom
-- Removes dead letters, either the named ones or all.
-- KEYS: dead letters, replayed, purged, once slot
-- ARGV: 'all' or 'named', how many letters, and how many bytes, are written again at most, token, then the letters' ids
-- Returns: number of removed letters
--@include json
--@include ids
--@include once
--@include replace
--@include stream
local before = already(KEYS[4], ARGV[4])
if before then return before end
local letters, replayed, purged = KEYS[1], KEYS[2], KEYS[3]
replace(purged, 'SCARD')
replace(replayed, 'HLEN')
if ARGV[1] == 'all' then
  local all = redis.call('XLEN', letters) - redis.call('SCARD', purged)
  redis.call('UNLINK', letters, replayed, purged)
  return keep(KEYS[4], ARGV[4], all)
end
local gone = 0
for i = 5, #ARGV do
  if redis.call('XRANGE', letters, ARGV[i], ARGV[i])[1] and redis.call('SADD', purged, ARGV[i]) == 1 then
    redis.call('HDEL', replayed, ARGV[i])
    gone = gone + 1
  end
end
keep(KEYS[4], ARGV[4], gone)
if redis.call('EXISTS', purged) == 0 then return gone end
-- A stream frees memory only at its oldest end, so remove the oldest letters first.
for _ = 1, 20 do
  local page, old = redis.call('XRANGE', letters, '-', '+', 'COUNT', 50), 0
  while page[old + 1] and redis.call('SREM', purged, page[old + 1][1]) == 1 do old = old + 1 end
  if old > 0 then redis.call('XTRIM', letters, 'MAXLEN', '=', redis.call('XLEN', letters) - old) end
  if old < 50 then break end
end
if redis.call('EXISTS', purged) == 0 then return gone end
-- Rewrite the remaining letters if they are few. Otherwise only hide purged letters until they are
-- the oldest, because rewriting would block the server.
local was = stream(letters)
if was['length'] > tonumber(ARGV[2]) then return gone end
local deleted, bytes, kept, from = was['max-deleted-entry-id'], 0, {}, '-'
while true do
  local page = redis.call('XRANGE', letters, from, '+', 'COUNT', 50)
  for _, entry in ipairs(page) do
    if redis.call('SISMEMBER', purged, entry[1]) == 0 then
      kept[#kept + 1] = entry
      -- Do not rewrite another program's huge letter: Lua's stack holds about 8,000 words.
      if #entry[2] > 7000 then return gone end
      for _, word in ipairs(entry[2]) do bytes = bytes + #word end
    elseif newer(entry[1], deleted) then
      deleted = entry[1]
    end
    from = '(' .. entry[1]
  end
  if bytes > tonumber(ARGV[3]) then return gone end
  if #page < 50 then break end
end
if not kept[1] then
  redis.call('XTRIM', letters, 'MAXLEN', '=', 0)
  redis.call('DEL', purged)
  return gone
end
-- Archives use these values to continue. Try the command first, while nothing can be lost: the
-- server or an ACL may refuse it.
local ends = { was['last-generated-id'], 'ENTRIESADDED', was['entries-added'], 'MAXDELETEDID', deleted }
local tried = redis.pcall('XSETID', letters, unpack(ends))
if type(tried) == 'table' and tried['err'] then return gone end
redis.call('DEL', letters, purged)
for _, entry in ipairs(kept) do redis.call('XADD', letters, entry[1], unpack(entry[2])) end
redis.call('XSETID', letters, unpack(ends))
return gone
