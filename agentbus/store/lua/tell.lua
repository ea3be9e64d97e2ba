#!lua
-- Puts a message into all given inboxes or into none; a reply to a message is sent only once.
-- KEYS: agents, once slot, leases, their fence and bell, then the sender's inbox, its positions, answers and bell, the
--       asks of who asks (the sender, or for an answer its recipient), then for each recipient the agents of its project,
--       its inbox, its positions and its presence
-- ARGV: sender, token, entry id in the sender's inbox of the message that this answers ('' for none), most unread
--       messages of an inbox, most messages that two agents may exchange (0: any number), in how many ms, 1 for an
--       urgent one, how many words of fields and values follow, those, how many patterns follow of leases that the first
--       recipient gets, those, the repository of those ('' for none), then for each recipient its name, the ms to keep its inbox ('': without end), and in its
--       project its name and the sender's
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
local first = patterns + 2 + #gives
here = ARGV[first - 1]
local INBOX, AT, ANSWERS, BELL, ASKS, TO = 6, 7, 8, 9, 10, 11
local is_ask, approval = false, false
for i = 1, #fields - 1, 2 do
  is_ask = is_ask or (fields[i] == 'ask' and fields[i + 1] == '1')
  approval = approval or (fields[i] == 'topic' and fields[i + 1] == 'approval')
end

-- seen(to): returns what is known of a recipient.
local function seen(to)
  local here = redis.pcall('HMGET', to.presence, 'state', 'seen', 'host', 'pid', 'process')
  if here['err'] then here = {} end
  local last = redis.pcall('ZSCORE', to.agents, to.there)
  return { unread(to.inbox, to.at), here[1] or '', here[2] or '', type(last) == 'string' and last or '',
    here[3] or '', here[4] or '', here[5] or '' }
end
local recipients = {}
for i = first, #ARGV, 4 do
  local at = TO + i - first
  recipients[#recipients + 1] = { name = ARGV[i], kept = ARGV[i + 1], there = ARGV[i + 2], sender = ARGV[i + 3],
    agents = KEYS[at], inbox = KEYS[at + 1], at = KEYS[at + 2], presence = KEYS[at + 3] }
end
if answered ~= '' then
  local answer = redis.pcall('HGET', KEYS[ANSWERS], answered)
  if type(answer) == 'string' then return { 'before', stamp, { answer, unpack(seen(recipients[1])) } } end
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
local unknown = {}
for _, to in ipairs(recipients) do
  to.known = seen(to)
  -- A person may be asked for an approval before having used the project.
  local may = answered ~= '' or (is_ask and approval and string.sub(to.there, 1, 6) == 'human:')
  if to.known[4] == '' and not may and redis.call('EXISTS', to.inbox, to.presence) == 0 then
    unknown[#unknown + 1] = to.name
  end
end
if #unknown > 0 then return { 'nobody', unpack(unknown) } end
for _, to in ipairs(recipients) do
  local left = to.known[1]
  if left >= tonumber(ARGV[4]) then return { 'full', to.name, left } end
  if tonumber(ARGV[5]) > 0 and to.name ~= sender then
    local count = between(to.inbox, to.sender) + between(KEYS[INBOX], to.name)
    if count >= tonumber(ARGV[5]) then return { 'fast', to.name, count } end
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
for _, to in ipairs(recipients) do
  local id = redis.call('XADD', to.inbox, '*', 'agent_id', to.sender, unpack(fields))
  if ARGV[7] == '1' then replace(to.at, 'HSET', 'urgent', id) end
  if to.kept ~= '' then
    redis.call('PEXPIRE', to.inbox, to.kept)
    redis.call('PEXPIRE', to.at, to.kept)
  end
  to.known[1] = to.known[1] + 1
  if is_ask then replace(KEYS[ASKS], 'ZADD', now, id .. '@' .. to.name) end
  sent[#sent + 1] = { id, unpack(to.known) }
end
if is_ask then
  redis.call('ZREMRANGEBYRANK', KEYS[ASKS], 0, -MOST_ASKS - 1)
  redis.call('PEXPIRE', KEYS[ASKS], ASKED_FOR)
end
if answered ~= '' then
  replace(KEYS[ASKS], 'ZREM', answered .. '@' .. recipients[1].sender)
  replace(KEYS[ANSWERS], 'HSET', answered, sent[3][1] .. '@' .. recipients[1].name)
  -- An agent that replies to a message has read it.
  mark_read(KEYS[INBOX], KEYS[AT], KEYS[BELL], stamp, { answered })
  replace(KEYS[BELL], 'XADD', 'MAXLEN', '=', 1, '*', 'answered', answered)
end
give_leases(KEYS[3], KEYS[4], KEYS[5], now, recipients[1].name, mine)
return keep(KEYS[2], ARGV[2], sent)
