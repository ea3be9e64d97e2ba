-- needed(stream, readers): the lowest id that a group may still need, and that group's name; nil without a group:
-- the oldest pending entry, else the one after the last delivered. Never above the id that a reader in the hash
-- `readers`, if given, still needs; then there is no name.
local function after(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  if #seq < 15 then return ms .. '-' .. string.format('%d', tonumber(seq) + 1) end
  return id
end
local function needed(stream, readers)
  local lowest, name
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local info = {}
    for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
    local id
    if info['pending'] > 0 then
      id = redis.call('XPENDING', stream, info['name'])[2]
    else
      id = after(info['last-delivered-id'])
    end
    if not lowest or newer(lowest, id) then lowest, name = id, info['name'] end
  end
  local read = lowest and readers and least(readers, lowest) or lowest
  return read, read == lowest and name or nil
end
-- room(stream, bound, wanted, readers): whether `wanted` more entries fit, after trimming unneeded ones; if not,
-- also the name of the group that needs the oldest entry, '' if there is none.
local function room(stream, bound, wanted, readers)
  local length = redis.call('XLEN', stream)
  if length + wanted <= bound then return true end
  if length == 0 then return false, '' end
  local lowest, name = needed(stream, readers)
  if lowest then length = length - redis.call('XTRIM', stream, 'MINID', '=', lowest) end
  return length + wanted <= bound, name or ''
end
