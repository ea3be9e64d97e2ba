#!lua flags=no-writes
-- Finds entries of streams by an error or by a value of their envelope, without returning payloads.
-- KEYS: streams
-- ARGV: XRANGE or XREVRANGE; how many entries, how many bytes and how many matches to read at most; what to match:
--       'all': every entry
--       'line': the first line of the error is the text
--       'value': the envelope contains the second text, the first one as JSON, or another field is the first one
--       'any': as 'value', or the error contains all further texts, which are in lower case
--       then how many texts, the texts; how many fields to return, their names; and for each stream its first and its
--       last id in the order of reading
-- Returns: {entries read, number of the stream at which it stopped (0 if it read all), id of the last entry read there,
--          then for each match {number of the stream, id, the fields' values, '' for those that it has not}}
local order, most, most_bytes, hits, how = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local at, texts, names = 7, {}, {}
for _ = 1, tonumber(ARGV[6]) do
  texts[#texts + 1] = ARGV[at]
  at = at + 1
end
for i = 1, tonumber(ARGV[at]) do names[i] = ARGV[at + i] end
at = at + #names + 1

-- value(flat, name): the last value of a field: a letter's own fields come last.
local function value(flat, name)
  for i = #flat - 1, 1, -2 do
    if flat[i] == name then return flat[i + 1] end
  end
  return ''
end
local function matches(flat)
  if how == 'all' then return true end
  if how == 'line' then return string.match(value(flat, 'error'), '^[^\r\n]*') == texts[1] end
  if string.find(value(flat, 'meta'), texts[2], 1, true) then return true end
  for i = 2, #flat, 2 do
    if flat[i] == texts[1] and flat[i - 1] ~= 'agent_id' and flat[i - 1] ~= 'payload' then return true end
  end
  if how == 'value' then return false end
  local said = string.lower(value(flat, 'error'))
  for i = 3, #texts do
    if not string.find(said, texts[i], 1, true) then return false end
  end
  return said ~= ''
end

local read, bytes, found = 0, 0, {}
for number, key in ipairs(KEYS) do
  local from, last, left = ARGV[at + 2 * number - 2], ARGV[at + 2 * number - 1], true
  while left do
    -- Few at a time where entries are large.
    local count = math.max(1, math.min(100, most - read, read == 0 and 4 or math.floor((most_bytes - bytes) * read / bytes)))
    local page = redis.pcall(order, key, from, last, 'COUNT', count)
    if page['err'] then page = {} end
    for _, entry in ipairs(page) do
      read, bytes = read + 1, bytes + 1
      for _, word in ipairs(entry[2]) do bytes = bytes + #word end
      if matches(entry[2]) then
        local row = { number, entry[1] }
        for _, name in ipairs(names) do row[#row + 1] = value(entry[2], name) end
        found[#found + 1] = row
      end
      from = '(' .. entry[1]
      if read >= most or bytes >= most_bytes or #found >= hits then
        local more = number < #KEYS or redis.call(order, key, from, last, 'COUNT', 1)[1]
        return { read, more and number or 0, entry[1], unpack(found) }
      end
    end
    left = #page == count
  end
end
return { read, 0, '', unpack(found) }
