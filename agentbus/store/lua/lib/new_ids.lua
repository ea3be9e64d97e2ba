-- new_ids(counter, suffix, count, hashes): returns ids of consecutive numbers for tasks that are stored until they are ready. The counter
-- only grows. It skips an id that one of these hashes has: another program stored something under it.
local function new_ids(counter, suffix, count, hashes)
  local last = tonumber(redis.call('GET', counter) or 0)
  local number, fresh = last, {}
  while #fresh < count do
    number = number + 1
    local id = string.format('d%.0f', number) .. suffix
    fresh[#fresh + 1] = id
    for _, hash in ipairs(hashes) do
      if redis.call('HGET', hash, id) then fresh = {} end
    end
  end
  for _ = last + 1, number do redis.call('INCR', counter) end
  return fresh
end
