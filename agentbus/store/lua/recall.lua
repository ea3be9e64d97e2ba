#!lua flags=no-writes
-- Reads notes by key.
-- KEYS: the hashes of notes
-- Returns: for each the reply of HGETALL, empty if there is no such note
local notes = {}
for i, key in ipairs(KEYS) do notes[i] = redis.call('HGETALL', key) end
return notes
