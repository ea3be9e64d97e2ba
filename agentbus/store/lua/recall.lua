#!lua flags=no-writes
-- Reads notes by key.
-- KEYS: the hashes of notes
-- Returns: for each the reply of HGETALL, empty if there is no such note, nil if another program
--          stored another type
local notes = {}
for i, key in ipairs(KEYS) do
  local found = redis.pcall('HGETALL', key)
  notes[i] = not found['err'] and found
end
return notes
