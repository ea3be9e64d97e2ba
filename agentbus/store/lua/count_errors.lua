#!lua flags=no-writes
-- Counts dead letters by queue and by the first line of their error, newest first.
-- KEYS: for each box its letters, the purged ones and the replayed ones
-- ARGV: how many letters of a box, and how many bytes in all, to read at most; '' to count every error, or '=' and an
--       error of the fingerprint to count; then for each box the id to start at
-- Returns: for each box {letters read, where to go on ('' at its end), then for each queue and error: queue ('' if the
--          letter names none), the line, letters, how many of them were replayed, newest id, oldest id, the line's fingerprint}
--@include fingerprint
local most, bytes, found = tonumber(ARGV[1]), tonumber(ARGV[2]), {}
local only = ARGV[3] ~= '' and fingerprint(string.sub(ARGV[3], 2))

-- own(flat, name): returns the last value of a field; the letter's own fields follow those of the
-- task.
local function own(flat, name)
  for i = #flat - 1, 1, -2 do
    if flat[i] == name then return flat[i + 1] end
  end
  return ''
end
local function count(sums, entry, purged, marks)
  local line, queue = string.match(own(entry[2], 'error'), '^[^\r\n]*'), own(entry[2], 'queue')
  local mask = fingerprint(line)
  if only and mask ~= only then return end
  if purged and redis.pcall('SISMEMBER', purged, entry[1]) == 1 then return end
  local replayed = marks and type(redis.pcall('HGET', marks, entry[1])) == 'string' and 1 or 0
  local name = #queue .. ' ' .. queue .. line
  local sum = sums[name]
  if not sum then
    sum = { queue, line, 0, 0, entry[1], entry[1], mask }
    sums[name] = sum
    sums[#sums + 1] = sum
  end
  sum[3], sum[4], sum[6] = sum[3] + 1, sum[4] + replayed, entry[1]
end

for at = 1, #KEYS, 3 do
  local from, read, size, sums = ARGV[3 + (at + 2) / 3], 0, 0, {}
  -- Most boxes have no purged and no replayed letters, so that no letter must be checked.
  local purged = redis.call('EXISTS', KEYS[at + 1]) == 1 and KEYS[at + 1]
  local marks = redis.call('EXISTS', KEYS[at + 2]) == 1 and KEYS[at + 2]
  while from ~= '' do
    if read >= most or bytes <= 0 then break end
    -- Read few at a time where letters are large.
    local number = math.max(1, math.min(100, most - read, read == 0 and 4 or math.floor(bytes * read / size)))
    local page = redis.pcall('XREVRANGE', KEYS[at], from, '-', 'COUNT', number)
    if page['err'] then page = {} end
    from = ''
    for _, entry in ipairs(page) do
      read, size, bytes = read + 1, size + 1, bytes - 1
      local flat = entry[2]
      for i = 1, #flat do size, bytes = size + #flat[i], bytes - #flat[i] end
      count(sums, entry, purged, marks)
      if #page == number then from = '(' .. entry[1] end
    end
  end
  local row = { read, from }
  for _, sum in ipairs(sums) do
    for _, value in ipairs(sum) do row[#row + 1] = value end
  end
  found[#found + 1] = row
end
return found
