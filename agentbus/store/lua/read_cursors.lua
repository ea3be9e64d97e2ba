#!lua flags=no-writes
-- Reads the cursors of agents, and how many messages of the channel lie past each.
-- KEYS: channel, heard, then the cursor of each agent
-- ARGV: for each cursor its field in `heard`
-- Returns: for each the cursor ('' if there is none), and how many messages lie past it (-1: unknown)
--@include ids
--@include stream
--@include heard
local there, info = pcall(stream, KEYS[1])
local reply, uncounted = {}, {}
for i = 3, #KEYS do
  local at = redis.pcall('GET', KEYS[i])
  if type(at) ~= 'string' then at = '' end
  local number = -1
  if there and (is_id(at) or is_id(at .. '-0')) then
    local position, lost = heard(info, KEYS[2], ARGV[i - 2], at)
    if not position and not lost then uncounted[#uncounted + 1] = { at = at, place = #reply + 2 } end
    if position and not lost then number = math.max(0, info['entries-added'] - position) end
  end
  reply[#reply + 1], reply[#reply + 2] = at, number
end
-- One pass counts for all of them.
table.sort(uncounted, function(a, b) return newer(a.at, b.at) end)
local next_one, count, from = 1, 0, '+'
while next_one <= #uncounted do
  local page = redis.call('XREVRANGE', KEYS[1], from, '-', 'COUNT', 1000)
  for _, entry in ipairs(page) do
    while next_one <= #uncounted and not newer(entry[1], uncounted[next_one].at) do
      reply[uncounted[next_one].place] = count
      next_one = next_one + 1
    end
    count, from = count + 1, '(' .. entry[1]
  end
  if #page < 1000 then
    for i = next_one, #uncounted do reply[uncounted[i].place] = count end
    break
  end
end
return reply
