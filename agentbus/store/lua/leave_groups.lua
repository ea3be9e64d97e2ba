#!lua flags=allow-oom
-- Deletes a consumer from the groups in which it holds nothing; elsewhere its pending entries would be lost.
-- KEYS: streams, the bell, whose entries it need not have acknowledged, and the visibilities of the group's consumers
-- ARGV: group, consumer
-- Returns: number of groups from which it was deleted
local visibilities, left, holds = table.remove(KEYS), 0, false
for i, stream in ipairs(KEYS) do
  local consumers = redis.pcall('XINFO', 'CONSUMERS', stream, ARGV[1])
  for _, consumer in ipairs(consumers.err and {} or consumers) do
    local named = {}
    for j = 1, #consumer, 2 do named[consumer[j]] = consumer[j + 1] end
    if named['name'] == ARGV[2] then
      if named['pending'] == 0 or i == #KEYS then
        redis.call('XGROUP', 'DELCONSUMER', stream, ARGV[1], ARGV[2])
        left = left + 1
      else
        holds = true
      end
    end
  end
end
if not holds then redis.pcall('HDEL', visibilities, ARGV[2]) end
return left
