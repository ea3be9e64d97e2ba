#!lua flags=allow-oom
-- Acknowledges cancelled tasks that a consumer has taken and must not run.
-- KEYS: stream, cancelled
-- ARGV: group, the part of a task's id after the entry's id, then the ids
-- Returns: {the ids of those that it acknowledged, the ids of those that were cancelled after they were taken}
local gone, held = {}, {}
for i = 3, #ARGV do
  local mark = ARGV[i] .. ARGV[2]
  if type(redis.pcall('HGET', KEYS[2], mark)) == 'string' then
    local holder = redis.call('HGET', KEYS[2], mark .. '\n' .. ARGV[1])
    if holder and holder ~= '' then
      -- `cancel` left it to its holder to settle it.
      held[#held + 1] = ARGV[i]
    else
      redis.call('XACK', KEYS[1], ARGV[1], ARGV[i])
      gone[#gone + 1] = ARGV[i]
    end
  end
end
return { gone, held }
