#!lua flags=allow-oom
-- Deletes a consumer from the groups in which it holds nothing; elsewhere its pending entries would be lost.
-- KEYS: streams, and the bell, whose entries it need not have acknowledged
-- ARGV: group, consumer
-- Returns: number of groups from which it was deleted
local left = 0
for i, stream in ipairs(KEYS) do
  local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, ARGV[1])
  for _, consumer in ipairs(consumers.err and {} or consumers) do
    local named = {}
    for j = 1, #consumer, 2 do named[consumer[j]] = consumer[j + 1] end
    if named['name'] == ARGV[2] and (named['pending'] == 0 or i == #KEYS) then
      redis.call('XGROUP', 'DELCONSUMER', stream, ARGV[1], ARGV[2])
      left = left + 1
    end
  end
end
return left
