-- An inbox is a stream. A hash records the id up to which the agent has read (heard), that id's
-- ordinal among all entries ever added, and a field for each message read beyond it: its id, and
-- the time.
local FIELDS = { 'heard', 'ordinal', 'notified', 'at:heard', 'at:notified', 'past', 'past:notified', 'urgent' }
-- read_position(at): returns the id up to which an inbox was read, its ordinal (nil: unknown), and
-- the number of messages read beyond it.
local function read_position(at)
  local kept = redis.pcall('HMGET', at, unpack(FIELDS))
  if kept['err'] then return '0-0', 0, 0 end
  local beyond = redis.call('HLEN', at)
  for i = 1, #FIELDS do
    if kept[i] then beyond = beyond - 1 end
  end
  if not kept[1] or not is_id(kept[1]) then return '0-0', 0, beyond end
  return kept[1], tonumber(kept[2] or ''), beyond
end
-- ordinal_of(inbox, info, heard, ordinal): returns the ordinal, counting entries if it is unknown
-- or invalid.
local function ordinal_of(inbox, info, heard, ordinal)
  local added = info['entries-added']
  if ordinal and ordinal <= added then return ordinal end
  local count, from = 0, heard
  repeat
    local page = redis.call('XRANGE', inbox, '(' .. from, '+', 'COUNT', 100)
    count = count + #page
    if #page > 0 then from = page[#page][1] end
  until #page < 100
  return added - count
end
-- unread(inbox, at): returns the number of unread messages in an inbox.
local function unread(inbox, at)
  local info = stream(inbox)
  local heard, ordinal, beyond = read_position(at)
  ordinal = ordinal_of(inbox, info, heard, ordinal)
  local left = math.min(info['entries-added'] - ordinal, info['length']) - beyond
  return left > 0 and left or 0
end
-- remember(at, field, words): appends words to a list of at most 200 records of two words each.
local function remember(at, field, words)
  local kept = redis.call('HGET', at, field)
  local all = {}
  for word in string.gmatch(kept or '', '%S+') do all[#all + 1] = word end
  for _, word in ipairs(words) do all[#all + 1] = word end
  redis.call('HSET', at, field, table.concat(all, ' ', math.max(1, #all - 399)))
end
-- mark_read(inbox, at, bell, now, ids): marks messages as read, moves the position past messages
-- that are all read, and wakes agents that wait for that. Returns the former number of unread
-- messages.
local function mark_read(inbox, at, bell, now, ids)
  local heard, ordinal = read_position(at)
  local marked = 0
  for _, id in ipairs(ids) do
    if newer(id, heard) then marked = marked + replace(at, 'HSETNX', id, now) end
  end
  if marked == 0 then return 0 end
  local info = stream(inbox)
  ordinal = ordinal_of(inbox, info, heard, ordinal)
  local from, past, stopped = heard, {}, false
  repeat
    local page = redis.call('XRANGE', inbox, '(' .. from, '+', 'COUNT', 16)
    for _, entry in ipairs(page) do
      local when = redis.call('HGET', at, entry[1])
      if not when then
        stopped = true
        break
      end
      redis.call('HDEL', at, entry[1])
      from, ordinal = entry[1], ordinal + 1
      if when ~= now then
        -- The message was read before its predecessors: `=` marks a time for this message alone.
        past[#past + 1] = '=' .. entry[1]
        past[#past + 1] = when
      end
    end
  until stopped or #page < 16
  if from ~= heard then
    if not stopped then ordinal = info['entries-added'] end
    redis.call('HSET', at, 'heard', from, 'at:heard', now, 'ordinal', string.format('%d', ordinal))
    past[#past + 1] = from
    past[#past + 1] = now
    remember(at, 'past', past)
  end
  replace(bell, 'XADD', 'MAXLEN', '=', 1, '*', 'heard', from)
  return marked
end
