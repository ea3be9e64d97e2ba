#!lua flags=no-writes
-- Returns how tasks ended, from their stored results, but without these results.
-- KEYS: results
-- Returns: for each task '' if there is no record, '+' for a result, else the marker stored in its
--          place
local found = {}
for i, key in ipairs(KEYS) do
  local kept = redis.pcall('GET', key)
  if type(kept) ~= 'string' then
    found[i] = ''
  else
    found[i] = string.sub(kept, 1, 1) == '!' and kept or '+'
  end
end
return found
