#!lua flags=no-writes
-- Reads notes by key, with a part of each value.
-- KEYS: the hashes of notes
-- ARGV: how many bytes of a value to return
-- Returns: for each {bytes of its value, the reply of HGETALL with the value cut}, empty if there is no such note
--@include truncate
local width, notes = tonumber(ARGV[1]), {}
for at, key in ipairs(KEYS) do
  local found, size = redis.pcall('HGETALL', key), 0
  -- Another program may have stored another type here.
  if found['err'] then found = {} end
  for i = 2, #found, 2 do
    if found[i - 1] == 'value' then size = #found[i] end
    found[i] = truncate(found[i], width)
  end
  notes[at] = { size, found }
end
return notes
