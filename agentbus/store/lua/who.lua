#!lua flags=no-writes
-- Reads the presence of agents, with what each has leased and how much it has not read.
-- KEYS: leases, then for each agent its presence, its inbox and the inbox's positions
-- ARGV: the agents
-- Returns: {now in ms, then for each agent {presence as HGETALL returns it, unread messages, patterns of its leases}}
--@include ids
--@include stream
--@include inbox
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local leased = {}
for i = 1, #ARGV do leased[ARGV[i]] = {} end
local leases = redis.pcall('HVALS', KEYS[1])
for _, value in ipairs(leases['err'] and {} or leases) do
  -- Another program may have written anything.
  local ok, lease = pcall(cjson.decode, value)
  if ok and type(lease) == 'table' and type(lease['pattern']) == 'string' and leased[lease['agent'] or '']
    and (tonumber(lease['until']) or 0) > now then
    table.insert(leased[lease['agent']], lease['pattern'])
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
