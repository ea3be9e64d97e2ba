#!lua flags=allow-oom
-- Deletes consumers that hold nothing and have been silent for long.
-- KEYS: stream
-- ARGV: group, the consumer that holds tasks put aside, how long in ms, limit, 1 only to count, 1 also those that hold something
-- Returns: how many
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
-- The group may have been removed a moment ago.
if consumers['err'] then return 0 end
local gone, idle, most = 0, tonumber(ARGV[3]), tonumber(ARGV[4])
for _, consumer in ipairs(consumers) do
  local info = {}
  for i = 1, #consumer, 2 do info[consumer[i]] = consumer[i + 1] end
  if gone < most and (info['pending'] == 0 or ARGV[6] == '1') and info['idle'] >= idle and info['name'] ~= ARGV[2] then
    if ARGV[5] ~= '1' then redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], info['name']) end
    gone = gone + 1
  end
end
return gone
