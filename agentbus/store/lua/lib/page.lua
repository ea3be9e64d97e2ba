-- page(stream, first, last, most): returns the ids of up to `most` entries, fewer if the entries
-- are large, so that no call blocks the server; and the id to continue from, '' at the end.
local function page(stream, first, last, most)
  local ids, bytes = {}, 0
  while #ids < most and bytes < 1048576 do
    local asked = math.min(50, most - #ids)
    local entries = redis.call('XRANGE', stream, first, last, 'COUNT', asked)
    for _, entry in ipairs(entries) do
      ids[#ids + 1] = entry[1]
      for _, word in ipairs(entry[2]) do bytes = bytes + #word end
    end
    if #entries < asked then return ids, '' end
    first = '(' .. ids[#ids]
  end
  return ids, first
end
