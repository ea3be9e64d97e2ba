#!lua flags=allow-oom
-- Records that an agent continues or stops, and reads news since the last notification.
-- Also renews the leases that hooks took.
-- KEYS: presence, agents, inbox, its positions, leases, fence of leases, channel, the agent's cursor, hash of cursors,
--       for 'stop' and 'wake' the inbox's bell
-- ARGV: agent, 'stop', 'wake' (only an idle agent is looked at, and nothing is recorded of it unless there is
--       something new) or another event ('unseen': nothing is read), ms to keep the presence, ms in which it is recorded once, ms that leases of
--       hooks last, 1 if a stop may be refused (for a wake the ms in which
--       an active agent must have done nothing to count as idle, '' for never, 'gone' to look at one that is
--       gone), the subagent that goes on ('' for
--       none), the agent as a field, the topics that agents follow by default, then fields and values of the presence
-- Returns: {} if there is nothing new; {'news', now in ms, {asks, urgent messages, others, unread messages, then for each
--          ask and urgent message its sender and the ms when it was sent}, what was spoken, as `spoken` returns it}; for
--          a stop {'idle', then pattern, token and repository of each lease that a hook took}, or as 'news', but of all that is
--          unread: {'stay', ...}; for a wake with nothing new {'quiet', the inbox's last id}, or {'busy'} if the agent
--          is active or gone. What was spoken neither keeps a turn from its end nor wakes
--@include json
--@include ids
--@include say
--@include stream
--@include replace
--@include fence
--@include overlap
--@include holder
--@include leases
--@include inbox
--@include pressing
--@include spoken
--@include write_presence
local presence, inbox, at = KEYS[1], KEYS[3], KEYS[4]
local agent, event, now = ARGV[1], ARGV[2], clock()
local before = replace(presence, 'HMGET', 'state', 'seen', 'refused', 'stayed', 'spoken', 'topics')
local seen = tonumber(before[2] or '') or 0
local marks = redis.pcall('HMGET', at, 'heard', 'notified')
local heard, notified = marks[1], marks[2]

-- own_leases(sub): returns the leases that hooks of this agent took, for it or for this subagent.
local function own_leases(sub)
  local found = {}
  local there, all = pcall(leases, KEYS[5], now)
  for _, one in ipairs(there and all or {}) do
    if one.agent == agent and (one.sub == '' or one.sub == sub) and one.lease['auto'] == true then found[#found + 1] = one end
  end
  return found
end
local function renew()
  local ms = tonumber(ARGV[5])
  for _, one in ipairs(own_leases(ARGV[7])) do
    if one.lease['until'] - now < ms / 2 then
      local value = redis.call('HGET', KEYS[5], one.field)
      value = string.gsub(value, '("until"%s*:%s*)%d+', '%1' .. string.format('%d', now + ms), 1)
      redis.call('HSET', KEYS[5], one.field, value)
      local needed = tonumber(token_ttl(ARGV[5]))
      if redis.call('PTTL', KEYS[6]) < needed then redis.call('PEXPIRE', KEYS[6], needed) end
    end
  end
end
local function notify(id)
  if not id or later(id, notified) ~= id or id == notified then return end
  replace(at, 'HSET', 'notified', id)
  local stamp = string.format('%d', now)
  redis.call('HSET', at, 'at:notified', stamp)
  remember(at, 'past:notified', { id, stamp })
end
local function news(kind, found, said)
  local waits = { 0, 0, 0, 0 }
  if found then waits = { found.asks, found.urgent, found.others, unread(inbox, at), unpack(found.who) } end
  return { kind, string.format('%d', now), waits, said or {} }
end
local function record(state)
  write_presence(presence, KEYS[2], agent, ARGV[3], now, state, { unpack(ARGV, 10) }, KEYS[10])
end

if event == 'stop' then
  local found = ARGV[6] == '1' and waiting(inbox, at, later(heard, ''), 1000, function() return true end)
  if found and found.pressing and later(found.pressing, before[3]) == found.pressing and found.pressing ~= before[3] then
    record('active')
    redis.call('HSET', presence, 'refused', found.pressing, 'stayed', string.format('%d', now))
    notify(found.last)
    return news('stay', found)
  end
  record('idle')
  local reply = { 'idle' }
  for _, one in ipairs(own_leases('')) do
    reply[#reply + 1] = one.path
    reply[#reply + 1] = one.token
    reply[#reply + 1] = one.repository
  end
  return reply
end

local function unseen()
  return waiting(inbox, at, later(heard, notified), 200, function(entry) return not is_thanks(entry) end)
end
if event == 'wake' then
  local rested = before[1] == 'active' and tonumber(ARGV[6])
  -- The hook at the turn's end has failed, unless it refused the end only recently.
  if rested and now - seen >= rested and now - (tonumber(before[4] or '') or 0) >= 2 * rested then
    record('idle')
  elseif ARGV[6] ~= 'gone' and (before[1] == 'active' or before[1] == 'gone') then
    return { 'busy' }
  end
  local found = unseen()
  if not found then return { 'quiet', replace(inbox, 'XLEN') > 0 and stream(inbox)['last-generated-id'] or '0-0' } end
  record('active')
  notify(found.last)
  return news('news', found)
end

if before[1] ~= 'active' or now - seen >= tonumber(ARGV[4]) or seen > now then
  record('active')
  renew()
elseif ARGV[7] ~= '' then
  -- Only its own events renew the leases of a subagent, one of several that are active.
  renew()
end
if event == 'unseen' then return {} end
local found = unseen()
if found then notify(found.last) end
local from = later(unheard_from(KEYS[8], now), before[5])
local said, last = spoken(KEYS[7], from, KEYS[9], ARGV[8], agent, before[6] or ARGV[9])
if last then redis.call('HSET', presence, 'spoken', last) end
if not found and not said then return {} end
return news('news', found, said)
