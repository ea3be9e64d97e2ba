-- publish(k, a): appends tasks with their envelopes, all or none, like the script `publish`, and
-- returns its reply. KEYS from k + 1 and ARGV from a + 1 are those of that script.
local function publish(k, a)
  local call, KEYS, ARGV = redis.call, KEYS, ARGV
  local stream, bound, count = KEYS[k + 1], tonumber(ARGV[a + 3]), tonumber(ARGV[a + 8])
  local seen, fresh = {}, count
  for i = k + 9, #KEYS do
    seen[i - k - 8] = call('GET', KEYS[i])
    if seen[i - k - 8] then fresh = fresh - 1 end
  end
  local fits, undone, blocking, oldest = true, 0, '', ''
  if fresh > 0 then fits, undone, blocking, oldest = room(stream, bound, fresh, KEYS[k + 7], KEYS[k + 8]) end
  if not fits then
    if ARGV[a + 1] == '1' and oldest ~= '' then return { 'full', undone, blocking, oldest } end
    if ARGV[a + 4] ~= 'trim' then
      count_refused(KEYS[k + 6], KEYS[k + 3], 100000, ARGV[a + 2], fresh)
      return { 'full', undone, blocking, oldest }
    end
    redis.pcall('HINCRBY', KEYS[k + 3], 'dropped', call('XTRIM', stream, 'MAXLEN', '=', math.max(0, bound - fresh)))
  end
  local reply, at, began = { 'tasks' }, a + 9, nil
  fresh = 0
  for n = 1, count do
    local words, mark, key = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), ARGV[at + 2]
    -- A key may occur twice in a batch: publish it only once.
    local id = mark > 0 and (seen[mark] or call('GET', KEYS[k + 8 + mark])) or nil
    if not id then
      id = call('XADD', stream, '*', unpack(ARGV, at + 3, at + 2 + words))
      fresh, began = fresh + 1, string.match(id, '^%d+')
      if mark > 0 then call('SET', KEYS[k + 8 + mark], id .. ARGV[a + 6], 'EX', ARGV[a + 5]) end
      if key ~= '' then call('ZADD', KEYS[k + 5], 0, order_member(key, id)) end
    end
    reply[n + 1] = id
    at = at + 3 + words
  end
  if fresh > 0 then
    redis.pcall('HINCRBY', KEYS[k + 3], 'published', fresh)
    call('ZADD', KEYS[k + 2], 'NX', began, ARGV[a + 2])
  end
  return reply
end
