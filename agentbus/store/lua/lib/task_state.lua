-- task_state(key, result, delayed, counter, cancelled, retries, index, queues, entry, id, number, group): returns the state of a task for a
-- group, as returned by the script `read_task_state`; `key` is its stream, `counter` that of ids, `retries` the stream of retries, `index`
-- where tasks in it are found, `queues` when each queue began.
local function task_state(key, result, delayed, counter, cancelled, retries, index, queues, entry, id, number, group)
  local kept = redis.call('GET', result)
  if kept then return { 'kept', kept } end
  local by = redis.call('HGET', cancelled, id)
  if by and not redis.call('HGET', cancelled, id .. '\n' .. (group == '' and 'default' or group)) then
    return { 'cancelled', by }
  end
  local state = stream(key)
  if entry == '' then
    if redis.call('ZSCORE', delayed, id) then return { 'waiting' } end
    local made = redis.call('GET', counter) or '0'
    if longer(number, made) then return { 'absent' } end
  elseif newer(entry, state['last-generated-id']) then
    return { 'absent' }
  end
  if redis.call('EXISTS', key) == 0 then return { 'waiting' } end
  local wanted = group == '' and 'default' or group
  local names, reached = {}, nil
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local info = {}
    for j = 1, #flat, 2 do info[flat[j]] = flat[j + 1] end
    -- Omit the router, which only moves tasks, each under its present id.
    if info['name'] ~= 'router' or group == 'router' then names[#names + 1] = info['name'] end
    if info['name'] == wanted then reached = info['last-delivered-id'] end
  end
  if not reached and group == '' and #names > 0 then
    if #names == 1 then return { 'group', names[1] } end
    return { 'groups', unpack(names, 1, math.min(#names, 100)) }
  end
  -- A delayed task gets a new entry id when it becomes due, and that id is not recorded.
  if entry == '' then return { 'waiting' } end
  local there = #redis.call('XRANGE', key, entry, entry) == 1
  local trimmed = false
  if not there and state['entries-added'] > state['length'] then
    -- One that is older than all that are left may have been trimmed, unless it is older than its queue: a server that was
    -- wiped has never had it.
    local oldest = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
    local queue = string.gsub(string.gsub(string.match(id, '@([^:]*)'), '%%3A', ':'), '%%25', '%%')
    local began = tonumber(redis.pcall('ZSCORE', queues, queue))
    trimmed = not (oldest and newer(entry, oldest[1])) and not (began and tonumber(string.match(entry, '^%d+')) < began)
  end
  -- A router may have moved it.
  if not reached then return { (there or trimmed) and 'waiting' or 'absent' } end
  if newer(entry, reached) then return { there and 'waiting' or 'absent' } end
  if #redis.call('XPENDING', key, wanted, entry, entry, 1) == 1 then return { 'waiting' } end
  if moved_entry(index, retries, id, wanted) then return { 'waiting' } end
  return { (there or trimmed) and 'done' or 'absent' }
end
