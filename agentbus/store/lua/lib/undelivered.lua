-- undelivered(key, length, first, last, delivered, lag, most, bytes): returns how many entries of a stream a group was not given,
-- and 1 if that is exact. Where the server does not know, up to `most` entries and `bytes` are counted.
local function count(key, after, most, most_bytes)
  local number, bytes = 0, 0
  while true do
    local page = redis.call('XRANGE', key, '(' .. after, '+', 'COUNT', 100)
    number = number + #page
    if #page < 100 then return number, 1 end
    for _, entry in ipairs(page) do
      for _, word in ipairs(entry[2]) do bytes = bytes + #word end
    end
    if number >= most or bytes >= most_bytes then return number, 0 end
    after = page[#page][1]
  end
end
local function undelivered(key, length, first, last, delivered, lag, most, bytes)
  if last == '' or not newer(last, delivered) then return 0, 1 end
  -- No entry was delivered. The server's own figure would include trimmed ones.
  if newer(first, delivered) then return length, 1 end
  if type(lag) == 'number' then return math.max(0, math.min(lag, length)), 1 end
  return count(key, delivered, most, bytes)
end
