#!lua flags=no-writes
-- Finds entries by an error, by a value in their envelope or by the text of their payload, without returning payloads.
-- KEYS: streams; for dead letters then for each stream the set of its purged ones, which do not match
-- ARGV: XRANGE or XREVRANGE; how many streams; how many entries, how many bytes and how many matches to read at most;
--       what to match:
--       'all': every entry
--       'fingerprint': the error has the fingerprint of the text
--       'value': the envelope contains the second text, the first one as JSON, another field is the first one, or the
--                payload contains all further texts, which are in lower case
--       'any': as 'value', or the error contains all of these
--       then how many texts, the texts; how many fields to return, their names; how many values the field `queue` may
--       have (0: any; '' where there is none), the values; and for each stream its first and its last id in the order of
--       reading
-- Returns: {entries read, number of the stream at which it stopped (0 if it read all), id of the last entry read there,
--          then for each match {number of the stream, id, the fields' values, '' for those that it has not}}
--@include fingerprint
local order, how, at = ARGV[1], ARGV[6], 7
local streams, most, most_bytes, hits = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

-- list(): returns the next list of texts from ARGV.
local function list()
  local given, number = {}, tonumber(ARGV[at])
  for i = 1, number do given[i] = ARGV[at + i] end
  at = at + number + 1
  return given
end
local texts, names, queues = list(), list(), list()
local mask = how == 'fingerprint' and fingerprint(texts[1])

-- value(flat, name): returns the last value of a field; the letter's own fields follow those of the
-- task.
local function value(flat, name)
  for i = #flat - 1, 1, -2 do
    if flat[i] == name then return flat[i + 1] end
  end
  return ''
end
local function of_queues(flat)
  local queue = queues[1] and value(flat, 'queue')
  for _, one in ipairs(queues) do
    if one == queue then return true end
  end
  return not queues[1]
end
local function contains(said)
  said = string.lower(said)
  for i = 3, #texts do
    if not string.find(said, texts[i], 1, true) then return false end
  end
  return said ~= '' and #texts > 2
end
local function matches(flat)
  if how == 'all' then return true end
  if how == 'fingerprint' then return fingerprint(value(flat, 'error')) == mask end
  if string.find(value(flat, 'meta'), texts[2], 1, true) then return true end
  for i = 2, #flat, 2 do
    if flat[i] == texts[1] and flat[i - 1] ~= 'agent_id' and flat[i - 1] ~= 'payload' then return true end
  end
  return contains(value(flat, 'payload')) or (how == 'any' and contains(value(flat, 'error')))
end

local read, bytes, found = 0, 0, {}
for number = 1, streams do
  local key, purged = KEYS[number], KEYS[streams + number]
  local from, last, left = ARGV[at + 2 * number - 2], ARGV[at + 2 * number - 1], true
  while left do
    -- Read few at a time where entries are large.
    local count = math.max(1, math.min(100, most - read, read == 0 and 4 or math.floor((most_bytes - bytes) * read / bytes)))
    local page = redis.pcall(order, key, from, last, 'COUNT', count)
    if page['err'] then page = {} end
    for _, entry in ipairs(page) do
      read, bytes = read + 1, bytes + 1
      for _, word in ipairs(entry[2]) do bytes = bytes + #word end
      local wanted = of_queues(entry[2]) and matches(entry[2])
      if wanted and not (purged and redis.pcall('SISMEMBER', purged, entry[1]) == 1) then
        local row = { number, entry[1] }
        for _, name in ipairs(names) do row[#row + 1] = value(entry[2], name) end
        found[#found + 1] = row
      end
      from = '(' .. entry[1]
      if read >= most or bytes >= most_bytes or #found >= hits then
        local more = number < streams or redis.call(order, key, from, last, 'COUNT', 1)[1]
        return { read, more and number or 0, entry[1], unpack(found) }
      end
    end
    left = #page == count
  end
end
return { read, 0, '', unpack(found) }
