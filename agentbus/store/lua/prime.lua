#!lua flags=no-writes
-- Reads what an agent sees first in a session: present agents, leases, waiting messages, and decisions.
-- KEYS: agents, leases, inbox, its positions, its answers, the agent's asks, channel, the agent's cursor, hash of
--       cursors, the agent's presence, then each note that may be a decision, then the presence of each agent
-- ARGV: agent, most leases of others and of this agent, most decisions, the agent as a field, the topics that
--       agents follow by default, how many notes, their keys, newest first, the repository, then the agents to look at
-- Returns: {now in ms, number of agents present with this one, others {name, client, state, seen in ms, branch, doing, host, pid, process},
--          number of leases of others, those that end last as lines, number of this agent's, those, {asks, urgent
--          messages, others, unread messages, then for each ask and urgent message its sender and the ms when it was
--          sent}, newest decisions, what was spoken, as `spoken` returns it, the asks that the agent has not answered,
--          each with its sender, its own asks that were not answered}
--@include json
--@include ids
--@include stream
--@include overlap
--@include holder
--@include leases
--@include inbox
--@include pressing
--@include spoken
--@include asks
local now, agent = clock(), ARGV[1]
local agents = {}
local decisions = {}
local notes = tonumber(ARGV[6])
here = ARGV[7 + notes]
for i = 1, notes do
  -- Another program that replaces or deletes a note leaves it among those with the tag.
  local tags = redis.pcall('HGET', KEYS[10 + i], 'tags')
  if type(tags) == 'string' and string.find(',' .. tags .. ',', ',%s*decision%s*,')
    and #decisions < tonumber(ARGV[3]) then
    decisions[#decisions + 1] = ARGV[6 + i]
  end
end
for i = 8 + notes, #ARGV do
  local name = ARGV[i]
  local here = redis.pcall('HMGET', KEYS[i + 3], 'state', 'seen', 'client', 'branch', 'doing', 'host', 'pid', 'process')
  if here['err'] then here = {} end
  local used = redis.pcall('ZSCORE', KEYS[1], name)
  used = type(used) == 'string' and tonumber(used) or 0
  local state = here[1] or ''
  local seen = tonumber(here[2] or '') or used * 1000
  local there = state ~= 'gone' and now - seen < (state == '' and 3600000 or 86400000)
  if there and name ~= agent then
    agents[#agents + 1] = { name, here[3] or '', state, string.format('%d', seen), here[4] or '', here[5] or '',
      here[6] or '', here[7] or '', here[8] or '' }
  end
end
local there, all = pcall(leases, KEYS[2], now)
all = there and all or {}
table.sort(all, function(a, b) return a.lease['until'] > b.lease['until'] end)
local counts, lists = { 0, 0 }, { {}, {} }
for _, one in ipairs(all) do
  local which = one.agent == agent and 2 or 1
  counts[which] = counts[which] + 1
  if #lists[which] < tonumber(ARGV[2]) then table.insert(lists[which], one.text) end
end
local heard = redis.pcall('HGET', KEYS[4], 'heard')
local found = waiting(KEYS[3], KEYS[4], later(heard, ''), 200, function() return true end)
local left = { 0, 0, 0, 0 }
if found then left = { found.asks, found.urgent, found.others, unread(KEYS[3], KEYS[4]), unpack(found.who) } end
local topics = redis.pcall('HGET', KEYS[10], 'topics')
local said = spoken(KEYS[7], unheard_from(KEYS[8], now), KEYS[9], ARGV[4], agent,
  type(topics) == 'string' and topics or ARGV[5])
return { string.format('%d', now), #agents + 1, agents, counts[1], lists[1], counts[2], lists[2], left, decisions, said or {},
  asks_to_answer(KEYS[3], KEYS[5], now), asks_without_answer(KEYS[6], now) }
