#!lua flags=no-writes
-- Reads the presence of agents, with what each has leased and how much it has not read.
-- KEYS: leases, then for each agent its presence, its inbox and the inbox's positions
-- ARGV: the agents, most messages to count for each
-- Returns: {now in ms, then for each agent {presence as HGETALL returns it, unread messages, patterns of its leases}}
--@include ids
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local leased = {}
for i = 1, #ARGV - 1 do leased[ARGV[i]] = {} end
local leases = redis.pcall('HVALS', KEYS[1])
for _, value in ipairs(leases['err'] and {} or leases) do
  -- Another program may have written anything.
  local ok, lease = pcall(cjson.decode, value)
  if ok and type(lease) == 'table' and type(lease['pattern']) == 'string' and leased[lease['agent'] or '']
    and (tonumber(lease['until']) or 0) > now then
    table.insert(leased[lease['agent']], lease['pattern'])
  end
end
local function unread(inbox, at)
  local heard = redis.pcall('HGET', at, 'heard')
  if type(heard) ~= 'string' or not is_id(heard) then heard = '0-0' end
  local count, from, most = 0, heard, tonumber(ARGV[#ARGV])
  repeat
    local page = redis.pcall('XRANGE', inbox, '(' .. from, '+', 'COUNT', 50)
    if page['err'] then return count end
    for _, entry in ipairs(page) do
      from = entry[1]
      if not redis.pcall('HGET', at, from) then count = count + 1 end
    end
  until #page < 50 or count >= most
  return count
end
local found = { now }
for i = 1, #ARGV - 1 do
  local presence = redis.pcall('HGETALL', KEYS[3 * i - 1])
  found[i + 1] = { presence['err'] and {} or presence, unread(KEYS[3 * i], KEYS[3 * i + 1]), leased[ARGV[i]] }
end
return found
