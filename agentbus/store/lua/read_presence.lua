#!lua flags=no-writes
-- Reads the presence of agents, with their leases and numbers of unread messages.
-- KEYS: leases, then for each agent its presence, its inbox and the inbox's positions
-- ARGV: the agents
-- Returns: {now in ms, then for each agent {presence as HGETALL returns it, unread messages, its leases, each a pattern, a subagent, a process and a repository, one per line}}
--@include ids
--@include holder
--@include stream
--@include inbox
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local leased = {}
for i = 1, #ARGV do leased[ARGV[i]] = {} end
local leases = redis.pcall('HGETALL', KEYS[1])
for i = 1, leases['err'] and 0 or #leases, 2 do
  local path, agent, sub = holder(leases[i])
  local mine = leased[agent or '']
  if mine and (tonumber(string.match(leases[i + 1], '"until"%s*:%s*(%d+)')) or 0) > now then
    mine[#mine + 1] = table.concat({ path, sub, string.match(leases[i + 1], '"process"%s*:%s*"([^"]*)"') or '',
      string.match(leases[i + 1], '"repository"%s*:%s*"([^"]*)"') or '' }, '\n')
  end
end
local function waiting(inbox, at)
  if redis.call('TYPE', inbox)['ok'] ~= 'stream' then return 0 end
  return unread(inbox, at)
end
local found = { now }
for i = 1, #ARGV do
  local presence = redis.pcall('HGETALL', KEYS[3 * i - 1])
  found[i + 1] = { presence['err'] and {} or presence, waiting(KEYS[3 * i], KEYS[3 * i + 1]), leased[ARGV[i]] }
end
return found
