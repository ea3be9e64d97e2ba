#!lua flags=allow-oom
-- Marks messages of an inbox as read or as notified, and removes old ones that were read.
-- KEYS: inbox, its positions, answers, bell, agents
-- ARGV: agent, 'heard' or 'notified', ms to keep the inbox ('': without end), messages to keep at least, their least age
--       in ms, then ids of messages: those that were read, or the last one that was notified
-- Returns: {number of marked messages, number of unread messages}
--@include ids
--@include stream
--@include replace
--@include say
--@include inbox
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local stamp = string.format('%d', now)
touch(KEYS[5], ARGV[1], string.format('%.3f', now / 1000))
local marked = 0
if ARGV[2] == 'heard' then
  marked = mark_read(KEYS[1], KEYS[2], KEYS[4], stamp, { unpack(ARGV, 6) })
elseif ARGV[6] then
  local at = redis.pcall('HGET', KEYS[2], 'notified')
  if type(at) ~= 'string' or not is_id(at) or newer(ARGV[6], at) then
    replace(KEYS[2], 'HSET', 'notified', ARGV[6])
    redis.call('HSET', KEYS[2], 'at:notified', stamp)
    remember(KEYS[2], 'past:notified', { ARGV[6], stamp })
    marked = 1
  end
end
local excess = redis.call('XLEN', KEYS[1]) - tonumber(ARGV[4])
if excess > 0 and marked > 0 then
  local heard = read_position(KEYS[2])
  local function goes(id)
    return not newer(id, heard) and tonumber(string.match(id, '^%d+')) < now - tonumber(ARGV[5])
  end
  repeat
    local gone, next_id, stays = false, nil, false
    for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', math.min(excess, 100) + 1)) do
      next_id = entry[1]
      stays = excess == 0 or not goes(entry[1])
      if stays then break end
      replace(KEYS[3], 'HDEL', entry[1])
      gone, excess = true, excess - 1
    end
    -- Keep the last entry that was examined; the next page begins with it.
    if gone and not stays then excess = excess + 1 end
    if gone then redis.call('XTRIM', KEYS[1], 'MINID', '=', next_id) end
  until stays or not gone
end
if ARGV[3] ~= '' then
  for i = 1, 4 do redis.call('PEXPIRE', KEYS[i], ARGV[3]) end
end
return { marked, unread(KEYS[1], KEYS[2]) }
