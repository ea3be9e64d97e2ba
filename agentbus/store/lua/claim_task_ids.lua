#!lua flags=allow-oom
-- Claims the work item ids that a task names, or releases them.
-- KEYS: the claims
-- ARGV: task id, seconds until other tasks may claim the ids; 0 releases them
-- Returns: 1 if this task holds all claims, 0 if another task holds one of them
local mine = {}
for _, key in ipairs(KEYS) do
  local before = redis.call('GET', key)
  if not before or before == ARGV[1] then mine[#mine + 1] = key end
end
if ARGV[2] ~= '0' and #mine < #KEYS then return 0 end
for _, key in ipairs(mine) do
  if ARGV[2] == '0' then
    redis.call('DEL', key)
  else
    redis.call('SET', key, ARGV[1], 'EX', ARGV[2])
  end
end
return #mine == #KEYS and 1 or 0
