#!lua flags=allow-oom
-- Acknowledges cancelled tasks that a consumer has taken but must not run.
-- KEYS: stream, cancelled
-- ARGV: group, suffix of task ids, then the ids
-- Returns: {ids that were acknowledged, ids of tasks that were cancelled after they were taken}
local gone, held = {}, {}
for i = 3, #ARGV do
  local mark = ARGV[i] .. ARGV[2]
  if type(redis.pcall('HGET', KEYS[2], mark)) == 'string' then
    local holder = redis.call('HGET', KEYS[2], mark .. '\n' .. ARGV[1])
    if holder and holder ~= '' then
      -- `cancel` left the task for its holder to settle.
      held[#held + 1] = ARGV[i]
    else
      redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
      gone[#gone + 1] = ARGV[i]
    end
  end
end
return { gone, held }
