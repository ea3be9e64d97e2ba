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
-- undone(stream, length, most): the most tasks that a group has not done, and its name; all, and no name, without a
-- group. Where the server does not know them, up to `most` are counted.
local function undone(stream, length, most)
  local open, name = -1, ''
  local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  if not first then return 0, '' end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local info = {}
    for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
    local new = undelivered(stream, length, first[1], last[1], info['last-delivered-id'], info['lag'], most, 1048576)
    if new + info['pending'] > open then open, name = new + info['pending'], info['name'] end
  end
  if open < 0 then return length, '' end
  return open, name
end
-- room(stream, bound, wanted, readers): whether `wanted` more tasks fit, after trimming unneeded ones: at most `bound`
-- that are not done, and ten times as many with those that stay behind one of these, or for a reader. Also how many
-- are not done; and if they do not fit, the name of the group that blocks, '' if there is none, and the id of the entry
-- behind which too many stay, '' if that is not the reason. The number is then that of all entries.
local function room(stream, bound, wanted, readers)
  local length = redis.call('XLEN', stream)
  if length + wanted <= bound or length == 0 then return length + wanted <= bound, length, '', '' end
  local lowest, name = needed(stream, readers)
  if lowest then length = length - redis.call('XTRIM', stream, 'MINID', '=', lowest) end
  if length + wanted <= bound then return true, length, '', '' end
  local open, group = undone(stream, length, bound)
  if open + wanted > bound then return false, open, group, '' end
  if length + wanted > 10 * bound then return false, length, name or '', lowest end
  return true, open, group, ''
end
