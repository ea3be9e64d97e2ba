#!lua flags=allow-oom
-- Moves deferred tasks from the old end of a stream to the end of the retry stream.
-- Done tasks behind them can then be trimmed. The old stream may itself be the retry stream.
-- KEYS: stream, its attempts, its retries, the retry stream, its attempts, its retries, the index of moved tasks,
--       bell
-- ARGV: group, the consumer that holds deferred tasks, maximum number, the suffix of task ids
-- Returns: {number of moved tasks, 1 if most of the retry stream is done}
--@include ids
--@include undelivered
--@include lowest_of_readers
--@include lowest_needed
--@include has_group
local call, group = redis.call, ARGV[1]
if call('EXISTS', KEYS[1]) == 0 or not has_group(KEYS[1], group) then return { 0, 0 } end
local number, last = 0, nil
for _, pending in ipairs(call('XPENDING', KEYS[1], group, '-', '+', ARGV[3])) do
  local id = pending[1]
  local entry = call('XRANGE', KEYS[1], id, id)[1]
  -- Skip huge entries: Lua's stack holds about 8,000 words.
  if pending[2] ~= ARGV[2] or not entry or #entry[2] > 7000 then break end
  local words, place = entry[2], nil
  for i = 1, #words, 2 do
    if words[i] == 'agentbus_moved_from' and KEYS[1] == KEYS[4] then place = words[i + 1] end
  end
  if not place then
    place = id .. ARGV[4]
    words[#words + 1] = 'agentbus_moved_from'
    words[#words + 1] = place
  end
  if number == 0 and (call('EXISTS', KEYS[4]) == 0 or not has_group(KEYS[4], group)) then
    call('XGROUP', 'CREATE', KEYS[4], group, '0', 'MKSTREAM')
  end
  last = call('XADD', KEYS[4], '*', unpack(words))
  -- Nobody reads the retry stream: claim each entry for the group as it is written.
  call('XCLAIM', KEYS[4], group, ARGV[2], 0, last, 'FORCE', 'JUSTID')
  local attempts, due = call('HGET', KEYS[2], id), call('ZSCORE', KEYS[3], id)
  if attempts then call('HSET', KEYS[5], last, attempts) end
  if due then call('ZADD', KEYS[6], due, last) end
  call('HDEL', KEYS[2], id)
  call('ZREM', KEYS[3], id)
  call('HSET', KEYS[7], place .. '\n' .. group, last)
  call('XACK', KEYS[1], group, id)
  number = number + 1
end
if number == 0 then return { 0, 0 } end
local undone = 0
for _, flat in ipairs(call('XINFO', 'GROUPS', KEYS[4])) do
  local info = {}
  for i = 1, #flat, 2 do info[flat[i]] = flat[i + 1] end
  call('XGROUP', 'SETID', KEYS[4], info['name'], last)
  undone = undone + info['pending']
end
call('XTRIM', KEYS[4], 'MINID', '=', (lowest_needed(KEYS[4])))
call('XADD', KEYS[8], 'MAXLEN', 1, '*', 'due', '0')
return { number, call('XLEN', KEYS[4]) > 2 * undone + 100 and 1 or 0 }
