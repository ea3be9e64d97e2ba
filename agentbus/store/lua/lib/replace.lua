-- replace(key, command, ...): runs a command. If another program has stored another type at the
-- key, which makes the bus's record useless, first deletes the key.
local function replace(key, command, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) ~= 'table' or not reply['err'] then return reply end
  if string.find(tostring(reply['err']), 'WRONGTYPE', 1, true) then redis.call('DEL', key) end
  return redis.call(command, key, ...)
end
