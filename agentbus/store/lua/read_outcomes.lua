#!lua flags=no-writes
-- Returns how tasks ended, from what is kept as their results, without the results.
-- KEYS: results
-- Returns: for each '' if there is none, '+' if it is a result, else what is kept in its place
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
