-- lowest_of(ids, lowest): returns the lowest of an id and the ids in a list.
-- lowest_of_readers(readers, lowest): returns the lowest of an id and the ids that readers in the
-- hash `readers` still need. A reader that needs nothing may have stored 'none'.
local function lowest_of(ids, lowest)
  for _, id in ipairs(ids) do
    if id ~= 'none' then
      -- While a reader's id is invalid, nothing may be removed.
      if not string.find(id, '^%d+%-%d+$') then return '0-0' end
      if newer(lowest, id) then lowest = id end
    end
  end
  return lowest
end
local function lowest_of_readers(readers, lowest)
  return lowest_of(redis.call('HVALS', readers), lowest)
end
