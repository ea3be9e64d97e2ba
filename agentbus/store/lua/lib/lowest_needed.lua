-- lowest_needed(stream, readers): returns the lowest id that a group may still need, which is its
-- oldest pending entry or else the entry after the last delivered one, and the group's name; nil
-- without a group. The id is never above one that a reader in the hash `readers`, if given, still
-- needs; then there is no name.
local function after(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  if #seq < 15 then return ms .. '-' .. string.format('%d', tonumber(seq) + 1) end
  return id
end
local function lowest_needed(stream, readers)
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
  local read = lowest and readers and lowest_of_readers(readers, lowest) or lowest
  return read, read == lowest and name or nil
end
-- pending(stream): returns the number of pending entries of each group, by name.
local function pending(stream)
  local found = {}
  if not stream or redis.call('EXISTS', stream) == 0 then return found end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local info = {}
    for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
    found[info['name']] = info['pending']
  end
  return found
end
-- undone(stream, length, most, retries): returns the largest number of tasks that a group has not
-- done, including the retry stream, and its name; without a group, the number of all tasks, and no
-- name. If the server does not know the number, counts up to `most`.
local function undone(stream, length, most, retries)
  local open, name, moved = -1, '', pending(retries)
  local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
  local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  if not first then
    for group, number in pairs(moved) do
      if number > open then open, name = number, group end
    end
    return math.max(0, open), name
  end
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local info = {}
    for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
    local new = undelivered(stream, length, first[1], last[1], info['last-delivered-id'], info['lag'], most, 1048576)
    local mine = new + info['pending'] + (moved[info['name']] or 0)
    if mine > open then open, name = mine, info['name'] end
  end
  if open < 0 then return length, '' end
  return open, name
end
-- room(stream, bound, wanted, readers, retries): returns whether `wanted` more tasks fit after
-- trimming: at most `bound` that are not done, and at most ten times as many including those that
-- stay behind one of these, or for a reader. Also returns the number of unfinished tasks (including
-- the retry stream, if given); and if the tasks do not fit, the name of the blocking group ('' if
-- none), and the id of the entry behind which too many stay ('' if that is not the reason;
-- otherwise the number counts all entries).
local function room(stream, bound, wanted, readers, retries)
  local length, aside = redis.call('XLEN', stream), retries and redis.call('XLEN', retries) or 0
  local all = length + aside + wanted
  if all <= bound or length + aside == 0 then return all <= bound, length + aside, '', '' end
  local lowest, name = lowest_needed(stream, readers)
  if lowest then length = length - redis.call('XTRIM', stream, 'MINID', '=', lowest) end
  if length + aside + wanted <= bound then return true, length, '', '' end
  local open, group = undone(stream, length, bound, retries)
  if open + wanted > bound then return false, open, group, '' end
  if length + wanted > 10 * bound then return false, length, name or '', lowest end
  return true, open, group, ''
end
