-- order_member(key, id): returns the member of a task with this ordering key in the index `order`,
-- a sorted set of equal scores, in which tasks of a key follow each other by id. A key contains no
-- newline.
local function order_member(key, id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)')
  return key .. '\n' .. string.rep('0', 20 - #ms) .. ms .. '-' .. string.rep('0', 20 - #seq) .. seq
end
