-- least(readers, lowest): the lowest of an id and the ids that readers in the hash `readers` still need. A reader
-- that needs nothing any more may have said 'none'.
local function least(readers, lowest)
  for _, id in ipairs(redis.call('HVALS', readers)) do
    if id ~= 'none' then
      -- What is no id says nothing about what may go.
      if not string.find(id, '^%d+%-%d+$') then return '0-0' end
      if newer(lowest, id) then lowest = id end
    end
  end
  return lowest
end
