#!lua flags=no-writes
-- Finds entries of the attempt log by a task.
-- KEYS: the log
-- ARGV: where to begin, how many entries to read at most, the id of the task's entry ('' if unknown), the task's id
-- Returns: {where to go on ('' at the log's end), then the entries that may be about the task}
local from, left, found = ARGV[1], tonumber(ARGV[2]), { '' }
while left > 0 do
  local page = redis.call('XRANGE', KEYS[1], from, '+', 'COUNT', math.min(100, left))
  for _, entry in ipairs(page) do
    local ids, more = '', ''
    for i = 1, #entry[2], 2 do
      if entry[2][i] == 'ids' then ids = entry[2][i + 1] elseif entry[2][i] == 'more' then more = entry[2][i + 1] end
    end
    if (ARGV[3] ~= '' and string.find(ids, ARGV[3], 1, true)) or string.find(more, ARGV[4], 1, true) then
      found[#found + 1] = entry
    end
    from = '(' .. entry[1]
  end
  if #page < math.min(100, left) then return found end
  left = left - #page
end
found[1] = from
return found
