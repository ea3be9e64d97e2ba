-- add_cut_off(found, stream, attempts, id, holder, tail): adds to `found` the attempt that a task's
-- holder may have begun, unless it cannot have begun or is already logged. `tail` is the suffix of
-- task ids. Call this before the task is deferred.
local function add_cut_off(found, stream, attempts, id, holder, tail)
  local record = redis.pcall('HGET', attempts, id)
  record = type(record) == 'string' and record or ''
  local number, mark = string.match(record, '^(%d+) (.*)$')
  if not number then
    number = math.min(tonumber(record) or 0, 1e9) + 1
  elseif string.find(mark, '^[?-]') or string.sub(mark, -1) == '!' then
    -- The attempt was counted or logged at an earlier reclaim, or will be counted before it begins.
    return
  else
    redis.call('HSET', attempts, id, record .. '!')
  end
  local entry, fields = redis.call('XRANGE', stream, id, id)[1], {}
  for i = 1, entry and #entry[2] or 0, 2 do fields[entry[2][i]] = entry[2][i + 1] end
  local meta = decode(fields['meta'] or '')
  meta = type(meta) == 'table' and meta or {}
  local first = fields['id'] or meta['id'] or fields['agentbus_moved_from']
  local at = found[holder]
  if not at then
    at = { ids = {}, attempt = {}, id = {}, task = {}, place = {} }
    found[holder] = at
  end
  local n = #at.ids + 1
  at.ids[n], at.attempt[n], at.place[n] = id, tonumber(number), n - 1
  at.id[n] = type(first) == 'string' and first or id .. tail
  at.task[n] = type(meta['task']) == 'string' and meta['task'] or ''
end
-- log_cut_off(found, key, bound, queue, group, tail): appends the attempts in `found` to the log,
-- one entry per holder.
local function log_cut_off(found, key, bound, queue, group, tail)
  for holder, at in pairs(found) do
    local more = { outcome = 'cut_off', priority = string.match(tail, ':(%l+)$') or 'normal' }
    for _, name in ipairs({ 'attempt', 'id', 'task' }) do more[name] = { at[name], at.place } end
    redis.pcall('XADD', key, 'MAXLEN', '~', bound, '*', 'queue', queue, 'group', group, 'worker', holder,
      'agent', string.match(holder, '^hand:(.*)$') or '', 'ids', table.concat(at.ids, ' '), 'began', '', 'took', '',
      'more', cjson.encode(more))
  end
end
