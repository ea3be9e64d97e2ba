#!lua
-- Puts a message into all given inboxes or into none; a reply to a message is sent only once.
-- KEYS: agents, once slot, leases, their fence and bell, then the sender's inbox, its positions, answers and bell, the
--       asks of who asks (the sender, or for an answer its recipient), then for each recipient its inbox, its positions and its presence
-- ARGV: sender, token, entry id in the sender's inbox of the message that this answers ('' for none), most unread
--       messages of an inbox, most messages that two agents may exchange (0: any number), in how many ms, 1 for an
--       urgent one, how many words of fields and values follow, those, how many patterns follow of leases that the first
--       recipient gets, those, then for each recipient its name and the ms to keep its inbox ('': without end)
-- Returns: {'sent', now in ms, then for each recipient {entry id, unread messages, state, when it was seen by its
--          presence in ms ('': unknown), when it was seen in s, and the host, the pid and the process of its presence}}, the same with 'before' for one that was answered
--          before, with the answer's id, {'nobody', names that were never seen}, {'full', name, unread},
--          {'fast', name, how many}, or {'unleased', number of a pattern, the lines of another agent's lease of it, of
--          one of the sender's that overlaps it and is not given, or ''}
--@include json
--@include once
--@include ids
--@include topic_and_agent
--@include stream
--@include replace
--@include say
--@include inbox
--@include fence
--@include overlap
--@include holder
--@include leases
--@include give_leases
--@include asks
local before = already(KEYS[2], ARGV[2])
if before then return before end
local sender, answered, fields = ARGV[1], ARGV[3], { unpack(ARGV, 9, 8 + ARGV[8]) }
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local stamp = string.format('%d', now)
local patterns = 9 + tonumber(ARGV[8])
local gives = { unpack(ARGV, patterns + 1, patterns + ARGV[patterns]) }
local first = patterns + 1 + #gives
local INBOX, AT, ANSWERS, BELL, ASKS, TO = 6, 7, 8, 9, 10, 11
local is_ask = false
for i = 1, #fields - 1, 2 do is_ask = is_ask or (fields[i] == 'ask' and fields[i + 1] == '1') end

local function seen(name, at, presence)
  local here = redis.pcall('HMGET', presence, 'state', 'seen', 'host', 'pid', 'process')
  if here['err'] then here = {} end
  local last = redis.pcall('ZSCORE', KEYS[1], name)
  return { unread(KEYS[at], KEYS[at + 1]), here[1] or '', here[2] or '', type(last) == 'string' and last or '',
    here[3] or '', here[4] or '', here[5] or '' }
end
if answered ~= '' then
  local answer = redis.pcall('HGET', KEYS[ANSWERS], answered)
  if type(answer) == 'string' then return { 'before', stamp, { answer, unpack(seen(ARGV[first], TO, KEYS[TO + 2])) } } end
end

local function between(inbox, agent)
  local count, at = 0, '+'
  local since = string.format('%d', now - tonumber(ARGV[6]))
  repeat
    local page = redis.call('XREVRANGE', inbox, at, since, 'COUNT', 100)
    for _, entry in ipairs(page) do
      local _, by = topic_and_agent(entry[2])
      if by == agent then count = count + 1 end
      at = '(' .. entry[1]
    end
  until #page < 100 or count >= tonumber(ARGV[5])
  return count
end
local found, unknown = {}, {}
for i = first, #ARGV, 2 do
  local name, at = ARGV[i], TO + 3 * (i - first) / 2
  local about_it = seen(name, at, KEYS[at + 2])
  if about_it[4] == '' and answered == '' and redis.call('EXISTS', KEYS[at], KEYS[at + 2]) == 0 then
    unknown[#unknown + 1] = name
  end
  found[#found + 1] = about_it
end
if #unknown > 0 then return { 'nobody', unpack(unknown) } end
for i = first, #ARGV, 2 do
  local name, at = ARGV[i], TO + 3 * (i - first) / 2
  local left = found[1 + (i - first) / 2][1]
  if left >= tonumber(ARGV[4]) then return { 'full', name, left } end
  if tonumber(ARGV[5]) > 0 and name ~= sender then
    local count = between(KEYS[at], sender) + between(KEYS[INBOX], name)
    if count >= tonumber(ARGV[5]) then return { 'fast', name, count } end
  end
end
local acting = ''
for i = 1, #fields, 2 do
  if fields[i] == 'sub' then acting = fields[i + 1] end
end
local mine, ended, other = leases_to_give(KEYS[3], now, sender, acting, gives)
if not mine then return { 'unleased', ended, other } end
if #mine > 0 then stored_token(KEYS[4]) end
delete(KEYS[3], ended)

touch(KEYS[1], sender, string.format('%.3f', now / 1000))
local sent = { 'sent', stamp }
for i = first, #ARGV, 2 do
  local at = TO + 3 * (i - first) / 2
  local about_it = found[1 + (i - first) / 2]
  local id = redis.call('XADD', KEYS[at], '*', 'agent_id', sender, unpack(fields))
  if ARGV[7] == '1' then replace(KEYS[at + 1], 'HSET', 'urgent', id) end
  if ARGV[i + 1] ~= '' then
    redis.call('PEXPIRE', KEYS[at], ARGV[i + 1])
    redis.call('PEXPIRE', KEYS[at + 1], ARGV[i + 1])
  end
  about_it[1] = about_it[1] + 1
  if is_ask then replace(KEYS[ASKS], 'ZADD', now, id .. '@' .. ARGV[i]) end
  sent[#sent + 1] = { id, unpack(about_it) }
end
if is_ask then
  redis.call('ZREMRANGEBYRANK', KEYS[ASKS], 0, -MOST_ASKS - 1)
  redis.call('PEXPIRE', KEYS[ASKS], ASKED_FOR)
end
if answered ~= '' then
  replace(KEYS[ASKS], 'ZREM', answered .. '@' .. sender)
  replace(KEYS[ANSWERS], 'HSET', answered, sent[3][1] .. '@' .. ARGV[first])
  -- An agent that replies to a message has read it.
  mark_read(KEYS[INBOX], KEYS[AT], KEYS[BELL], stamp, { answered })
  replace(KEYS[BELL], 'XADD', 'MAXLEN', '=', 1, '*', 'answered', answered)
end
give_leases(KEYS[3], KEYS[4], KEYS[5], now, ARGV[first], mine)
return keep(KEYS[2], ARGV[2], sent)
