-- undelivered(key, length, first, last, delivered, lag, most, bytes): returns the number of entries
-- of a stream that were not delivered to a group, and 1 if it is exact. If the server does not know
-- the number, counts up to `most` entries and `bytes`.
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
  -- Nothing was delivered yet; the server's lag would include trimmed entries.
  if newer(first, delivered) then return length, 1 end
  if type(lag) == 'number' then return math.max(0, math.min(lag, length)), 1 end
  return count(key, delivered, most, bytes)
end
