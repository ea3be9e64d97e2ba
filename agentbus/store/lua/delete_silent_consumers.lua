#!lua flags=allow-oom
-- Deletes consumers that hold nothing and have long been silent.
-- KEYS: stream
-- ARGV: group, the consumer that holds deferred tasks, minimum silence in ms, limit, 1 only to
--       count, 1 to delete also consumers that hold something
-- Returns: number of consumers
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
-- The group may have just been removed.
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
